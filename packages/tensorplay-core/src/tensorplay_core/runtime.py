"""One driver and its observers behind a typed façade over the hooks.

Each runtime has a plugin manager of its own with exactly one driver in it: with a global one the
driver registered last would answer for all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from inspect import signature
from typing import Any, cast

import pluggy

from . import discovery
from .errors import ArgumentTypeError, UnsupportedByDriver
from .hookspecs import PROJECT
from .hookspecs import conditional as conditional_hooks
from .hookspecs import device as device_hooks
from .hookspecs import graph as graph_hooks
from .hookspecs import pool as pool_hooks
from .protocols import (
    Capture,
    CaptureMode,
    CaptureOptions,
    ConditionalKind,
    Device,
    Executable,
    Pool,
    PoolStatistics,
    StagePlan,
    Template,
    Update,
)
from .shield import shielded
from .signature import a_type
from .topology import Topology

__all__ = ["NOUNS", "Runtime", "select"]

NOUNS: Mapping[str, tuple[str, ...]] = {
    module.__name__.rpartition(".")[2]: tuple(
        name.removeprefix(f"{PROJECT}_") for name in vars(module) if name.startswith(f"{PROJECT}_")
    )
    for module in (device_hooks, graph_hooks, pool_hooks, conditional_hooks)
}
"""Hook names, without their prefix, by noun."""


class Runtime:
    """One driver, any number of observers, and every hook as a typed method.

    Args:
        driver: The plugin that a driver's card loads.
        observers: Objects whose methods wrap hooks; see ``tensorplay_core.hookspecs``.
        name: The driver's name.

    Raises:
        pluggy.PluginValidationError: A hook implementation's name or argument is misspelt.
    """

    def __init__(self, driver: object, observers: Iterable[object] = (), *, name: str) -> None:
        self.name = name
        self.driver = driver
        self._bases: dict[str, Runtime] = {}
        self._manager = pluggy.PluginManager(PROJECT)
        for module in (device_hooks, graph_hooks, pool_hooks, conditional_hooks):
            self._manager.add_hookspecs(module)
        self._manager.register(driver, name=name)
        for observer in observers:
            self._manager.register(shielded(observer))
        self._manager.check_pending()
        self._hook = self._manager.hook
        self._calls = {
            hook: self._shortest(hook)
            for hooks in NOUNS.values()
            for hook in hooks
            if self.can(hook)
        }
        for hook, call in self._calls.items():
            method = getattr(type(self), hook)
            # What a subclass puts in the place of a method is its own.
            if method is getattr(Runtime, hook) and _is_as_short(call, method):
                setattr(self, hook, call)

    def __repr__(self) -> str:
        return f"Runtime({self.name!r})"

    def base(self, name: str) -> Runtime:
        """A child runtime of another driver, without observers: nothing is counted twice.

        Args:
            name: Of the driver.

        Raises:
            UnknownDriver: No such driver is installed.
            DriverUnavailable: It cannot work on this machine.
        """
        if name not in self._bases:
            self._bases[name] = Runtime(discovery.choose(name).load(), name=name)
        return self._bases[name]

    def can(self, hook: str) -> bool:
        """True if the driver itself implements ``hook`` (an observer of it does not count)."""
        caller = getattr(self._hook, f"{PROJECT}_{hook}")
        return any(impl.plugin is self.driver for impl in caller.get_hookimpls())

    def nouns(self) -> dict[str, tuple[str, ...]]:
        """The hooks that the driver implements, by noun."""
        return {noun: tuple(h for h in hooks if self.can(h)) for noun, hooks in NOUNS.items()}

    def require(self, hook: str, doing: str) -> None:
        """Raises UnsupportedByDriver if the driver lacks ``hook``."""
        if not self.can(hook):
            raise UnsupportedByDriver(
                driver=self.name,
                hook=hook,
                doing=doing,
                remedy="Choose a driver that has it: python -m tensorplay_core lists them.",
            )

    def _call(self, hook: str, **arguments: Any) -> Any:
        call = self._calls.get(hook)
        if call is None:
            self.require(hook, hook.replace("_", " "))
        return call(**arguments)  # type: ignore[misc]

    def _shortest(self, hook: str) -> Callable[..., Any]:
        """The driver's own method if nobody watches it, which pluggy would call all the same."""
        caller = getattr(self._hook, f"{PROJECT}_{hook}")
        first, *others = caller.get_hookimpls()
        whole = not others and set(first.argnames) == set(caller.spec.argnames)
        return cast("Callable[..., Any]", first.function if whole else caller)

    # device

    def describe(self) -> Mapping[str, str]:
        return cast("Mapping[str, str]", self._call("describe"))

    def resolve_device(self, device: object) -> Device:
        return cast("Device", self._call("resolve_device", device=device))

    def current_stream(self, device: Device) -> int:
        return cast("int", self._call("current_stream", device=device))

    def side_stream(self, device: Device, pool: object) -> object:
        return self._call("side_stream", device=device, pool=pool)

    def resolve_stream(self, stream: object, device: Device) -> int:
        return cast("int", self._call("resolve_stream", stream=stream, device=device))

    def using_stream(self, stream: object, device: Device) -> AbstractContextManager[None]:
        return cast(
            "AbstractContextManager[None]",
            self._call("using_stream", stream=stream, device=device),
        )

    def array_like(self, array: Any) -> Any:
        return self._call("array_like", array=array)

    def array_copy(self, destination: Any, source: Any) -> None:
        self._call("array_copy", destination=destination, source=source)

    def array_overlap(self, first: Any, second: Any) -> bool:
        return bool(self._call("array_overlap", first=first, second=second))

    def signature_check(self, static: Sequence[Any]) -> Callable[[Sequence[Any]], bool]:
        return cast("Callable[[Sequence[Any]], bool]", self._call("signature_check", static=static))

    def stage(
        self, executable: Executable, static_inputs: Sequence[Any], results: Sequence[Any]
    ) -> StagePlan:
        return cast(
            "StagePlan",
            self._call(
                "stage", executable=executable, static_inputs=static_inputs, results=results
            ),
        )

    # graph

    def graph_begin(
        self,
        device: Device,
        stream: object,
        pool: object,
        mode: CaptureMode,
        options: CaptureOptions,
    ) -> Capture:
        return cast(
            "Capture",
            self._call(
                "graph_begin", device=device, stream=stream, pool=pool, mode=mode, options=options
            ),
        )

    def graph_adopt(self, stream: object, owner: str) -> Capture:
        return cast("Capture", self._call("graph_adopt", stream=stream, owner=owner))

    def graph_mark(self, capture: Capture) -> int:
        return int(self._call("graph_mark", capture=capture))

    def graph_end(self, capture: Capture) -> Template:
        return cast("Template", self._call("graph_end", capture=capture))

    def graph_abort(self, capture: Capture, error: BaseException | None) -> BaseException | None:
        return cast("BaseException | None", self._call("graph_abort", capture=capture, error=error))

    def graph_instantiate(self, template: Template) -> Executable:
        return cast("Executable", self._call("graph_instantiate", template=template))

    def executable_adopt(self, template: Template, raw: Any, owner: object) -> Executable:
        return cast(
            "Executable", self._call("executable_adopt", template=template, raw=raw, owner=owner)
        )

    def executable_id(self, executable: Executable) -> int:
        return int(self._call("executable_id", executable=executable))

    def graph_update(self, executable: Executable, template: Template) -> Update:
        return cast("Update", self._call("graph_update", executable=executable, template=template))

    def graph_topology(self, template: Template) -> Topology:
        return cast("Topology", self._call("graph_topology", template=template))

    def graph_dot(self, template: Template, verbose: bool) -> str:
        return cast("str", self._call("graph_dot", template=template, verbose=verbose))

    def graph_capturing(self, device: Device) -> bool:
        return bool(self._call("graph_capturing", device=device))

    # pool

    def pool_create(self, device: Device) -> Pool:
        return cast("Pool", self._call("pool_create", device=device))

    def pool_resolve(self, token: object, device: Device) -> Pool:
        return cast("Pool", self._call("pool_resolve", token=token, device=device))

    def pool_route(self, pool: Pool, capture: Capture) -> AbstractContextManager[None]:
        return cast(
            "AbstractContextManager[None]", self._call("pool_route", pool=pool, capture=capture)
        )

    def pool_statistics(self, pool: Pool) -> PoolStatistics:
        return cast("PoolStatistics", self._call("pool_statistics", pool=pool))

    def pool_release(self, pool: Pool) -> None:
        self._call("pool_release", pool=pool)

    # conditional

    def conditional_open(
        self,
        capture: Capture,
        kind: ConditionalKind,
        predicate: Any,
        branches: int,
        *,
        first: bool = False,
        max_steps: int | None = None,
    ) -> tuple[Capture, ...]:
        return cast(
            "tuple[Capture, ...]",
            self._call(
                "conditional_open",
                capture=capture,
                kind=kind,
                predicate=predicate,
                branches=branches,
                first=first,
                max_steps=max_steps,
            ),
        )

    def conditional_enter(self, body: Capture) -> None:
        self._call("conditional_enter", body=body)

    def conditional_set(self, body: Capture, predicate: Any) -> None:
        self._call("conditional_set", body=body, predicate=predicate)

    def conditional_exit(self, body: Capture) -> None:
        self._call("conditional_exit", body=body)

    def conditional_read(self, predicate: Any) -> int:
        return int(self._call("conditional_read", predicate=predicate))


def _is_as_short(call: Callable[..., Any], method: Callable[..., Any]) -> bool:
    """True if a driver's own method may stand in for the façade's, which then costs nothing.

    It takes the same arguments in the same places, and gives what it gives unconverted.
    """
    if isinstance(call, pluggy.HookCaller) or method in _CONVERTING:
        return False
    _, *wanted = signature(method).parameters.values()
    given = signature(call).parameters.values()
    return [(one.name, one.kind, one.default) for one in wanted] == [
        (one.name, one.kind, one.default) for one in given
    ]


_CONVERTING = (
    Runtime.array_overlap,
    Runtime.graph_mark,
    Runtime.executable_id,
    Runtime.graph_capturing,
    Runtime.conditional_read,
)
"""They return a plain bool or int of whatever a driver says."""


_selected: dict[str, Runtime] = {}
_selected_lock = threading.Lock()


def select(driver: str | None = None) -> Runtime:
    """The runtime of the driver to use, made once per driver.

    Observers named in ``TENSORPLAY_OBSERVERS`` (comma-separated) watch it.

    Args:
        driver: A name that ``python -m tensorplay_core`` lists; None follows ``TENSORPLAY_DRIVER``,
            then the highest viable priority.

    Raises:
        ArgumentTypeError: ``driver`` is no string.
        UnknownDriver: No such driver or observer is installed.
        DriverUnavailable: The driver cannot work on this machine.
    """
    if driver is not None and not isinstance(driver, str):
        raise ArgumentTypeError(
            doing="choosing",
            subject="a driver",
            met=f"its name is {a_type(driver)}",
            remedy="Pass a string, or None for the one that fits this machine.",
        )
    if driver is not None and (known := _selected.get(driver)) is not None:
        return known
    with _selected_lock:
        card = discovery.choose(driver)
        if card.name not in _selected:
            observers = [make() for make in discovery.observers_asked_for()]
            _selected[card.name] = Runtime(card.load(), observers, name=card.name)
        return _selected[card.name]
