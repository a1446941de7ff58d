"""What a captured step's code depends on in Python, and whether it is still what it was.

A replay runs no Python. So it would not see that a module evaluates, that a number which a forward
reads (a rate of dropout, an eps) is another one, that somebody registered a hook, or that a name
which the loss reads is bound to something else. It is looked at in each call, by loops that run in
C; lists, dicts and objects that code finds by name are looked at in turn, some a call. Hooks cost
one comparison: torch counts those that it ever registered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from operator import call, is_, itemgetter
from types import ModuleType
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.modules import module as of_modules
from torch.optim import optimizer as of_optimizers
from torch.utils.hooks import RemovableHandle

from tensorplay_core.signature import a_type
from tensorplay_torch.compiled import parts
from tensorplay_torch.graphing.bindings import binding_entries
from tensorplay_torch.graphing.eligibility import HOOKS
from tensorplay_torch.graphing.entries import absent_of, added
from tensorplay_torch.graphing.watch import constants_of
from tensorplay_torch.tracking.code import Mentions
from tensorplay_torch.tracking.fixed import is_constant, same
from tensorplay_torch.tracking.reached import Reached

from .attributes import Attributes
from .recipe import Recipe
from .turning import Entry, in_turn

__all__ = ["Watching"]

Looks: TypeAlias = "list[tuple[Callable[[dict[str, Any]], tuple[Any, ...]], list[dict[str, Any]]]]"

OF_TENSORS = {
    "_backward_hooks": "gradient hook",
    "_post_accumulate_grad_hooks": "hook after its gradient's accumulation",
}
OF_OPTIMIZERS = {
    "_optimizer_step_pre_hooks": "step pre-hook",
    "_optimizer_step_post_hooks": "step post-hook",
}
OF_ALL_MODULES = (
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
)
OF_ALL_OPTIMIZERS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
OURS = "tensorplay_"
SHADOWS = ("forward", "_call_impl", "__call__")
ABSENT = object()


class Watching:
    """See the module.

    Args:
        recipe: The step, as it was just captured.
        modules: Those that it runs or writes, by path.
        tensors: Whose gradients it computes, with what errors call them.
        functions: What its functions reach, by what errors call them.

    Attributes:
        unchanged: Called without arguments it returns True if nothing changed, or False if that
            needs a closer look: at ``differences``, and if there are none at ``note``. With
            compiled parts it looks at everything, and the checks are asked in its place.
        checks: With compiled parts, what is all true only if nothing changed, each cheap to ask.
    """

    def __init__(
        self,
        recipe: Recipe,
        modules: Mapping[str, nn.Module],
        tensors: Mapping[torch.Tensor, str],
        functions: Mapping[str, Reached],
    ) -> None:
        self._recipe, self._modules, self._tensors = recipe, modules, tensors
        self._owners: dict[str, object] = {
            path or "the module": one for path, one in modules.items()
        }
        mentions = Mentions()
        self._constants: dict[str, dict[str, Any]] = {}
        for path, one in zip(self._owners, modules.values(), strict=True):
            names = frozenset().union(*(found.names_of(one) for found in functions.values()))
            self._constants[path] = constants_of(one, mentions=mentions, others=names)
            # A compiled module has the mode of the one that it wraps.
            if "training" in vars(one):
                self._constants[path]["training"] = one.training
        self._missing = {
            path: absent_of(one, mentions)
            for path, one in zip(self._owners, modules.values(), strict=True)
        }
        optimizer = self._owners["optimizer"] = recipe.optimizer
        ours = not type(optimizer).__module__.startswith("torch.")
        self._constants["optimizer"] = (
            constants_of(optimizer, "step", mentions=mentions) if ours else {}
        )
        if "step" in vars(optimizer):
            self._constants["optimizer"]["step"] = vars(optimizer)["step"]
        found = [
            one._replace(name=f"{kind}: {one.name}")
            for kind, reached in functions.items()
            for one in reached.bindings
            if not issubclass(type(one.value), ModuleType)
        ]
        # Numbers and tensors cost little to compare; lists, dicts and objects take turns.
        self._bindings = [one for one in found if _is_simple(one.value)]
        # Where the memory of a tensor is takes a turn, too: ``w.data = ...`` leaves it the same.
        moving = [one for one in self._bindings if issubclass(type(one.value), torch.Tensor)]
        others = [one for one in found if not _is_simple(one.value)]
        self._turns = list(binding_entries([*others, *moving]))
        self._shadows = {path: _shadowed(one) for path, one in self._owners.items()}
        if not ours:
            self._shadows["optimizer"] &= {"step"}
        self._kinds = {path: type(one) for path, one in self._owners.items()}
        self._containers = {path: Attributes(one).containers for path, one in self._owners.items()}
        self._forwards: dict[Any, Any] = {
            kind: kind.forward
            for kind in _kinds(modules.values())
            # A descriptor's own may be made anew each time.
            if kind.forward is kind.forward
        }
        self._dtype = torch.get_default_dtype()
        self._hooks = dict(self._hooked())
        self.checks: list[Callable[[], object]] = []
        self.note()

    def note(self) -> None:
        """Takes what does not matter as it is now, so that the next look is short again."""
        owners, constants = list(self._owners.values()), list(self._constants.values())
        attributes = [Attributes(one) for one in owners]
        dicts, kinds = [one.dict for one in attributes], list(self._kinds.values())
        # Objects with attributes of the same names are looked at by one loop.
        alike: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for one, names in zip(dicts, map(tuple, constants), strict=True):
            alike.setdefault(names, []).append(one)
        looks = [(_getter(names), group) for names, group in alike.items() if names]
        values = list(_values(looks))
        lengths = list(map(len, dicts))
        forwards = list(self._forwards.items())
        reads = [one.read for one in self._bindings]
        bound = list(map(call, reads))
        # What is removed is not counted as what is registered is.
        present = [(hooks, len(hooks)) for _, hooks in self._all_hooks() if hooks]
        entries: list[Entry] = [*self._turns, *attributes]
        turned = in_turn(entries)
        dtype, default_dtype = self._dtype, torch.get_default_dtype
        handles, registered = RemovableHandle, RemovableHandle.next_id

        def equal() -> bool:
            try:
                if not all(map(is_, _values(looks), values)):
                    return False
            except KeyError:  # It is gone.
                return False
            return list(map(len, dicts)) == lengths and list(map(type, owners)) == kinds

        def read() -> bool:
            return all(map(is_, map(call, reads), bound))

        def usual() -> bool:
            return (
                handles.next_id == registered
                and default_dtype() is dtype
                and equal()
                and all(kind.forward is forward for kind, forward in forwards)
                and read()
                and turned()
                and all(len(hooks) == size for hooks, size in present)
            )

        def closely() -> bool:
            return usual() and not any(one.changed for one in entries)

        self.unchanged: Callable[[], bool] = usual
        self.checks = []
        if (compiled := parts()) is not None:
            counting = [
                (one.dict, (*names, *one.containers))
                for one, names in zip(attributes, constants, strict=True)
            ]
            sized = [hooks for one in attributes for hooks in one.hooks]
            sized += [hooks for hooks, _ in present]
            named = [(handles, "next_id"), *((kind, "forward") for kind, _ in forwards)]
            held = compiled.Same([], counting, sized, owners, named)
            self.unchanged = closely
            some = ((read, reads), (in_turn(self._turns), self._turns))
            self.checks = [held, *(check for check, what in some if what)]

    def differences(self) -> Iterator[str]:
        """What changed, one line each."""
        for path, containers in self._containers.items():
            attributes = vars(self._owners[path])
            for name, was in containers.items():
                if attributes.get(name) is not was:
                    yield f"{path}.{name} was replaced"
        for kind, forward in self._forwards.items():
            if kind.forward is not forward:
                yield f"the forward of class {kind.__name__} is another"
        for path, constants in self._constants.items():
            attributes = vars(self._owners[path])
            for name, was in constants.items():
                now = attributes.get(name, ABSENT)
                if now is not was and not same(was, now):
                    yield f"{path}.{name} is {_changed(was, now)}"
        for path, missing in self._missing.items():
            owner = self._owners[path]
            for name in added(owner, missing - self._shadows[path]):
                now = vars(owner)[name]
                said = repr(now)[:60] if _printable(now) else a_type(now)
                yield f"{path}.{name} is {said}, was not there"
        for path, kind in self._kinds.items():
            if type(self._owners[path]) is not kind:
                now = type(self._owners[path]).__name__
                yield f"the class of {path} is {now}, was {kind.__name__}"
        for path, names in self._shadows.items():
            owner = self._owners[path]
            for name in names & vars(owner).keys():
                # A schedule puts one there that counts, and calls that of the class.
                if not hasattr(vars(owner)[name], "_wrapped_by_lr_sched"):
                    yield f"{path}.{name} is set, and hides that of its class"
        for name, read, value in self._bindings:
            now = read()
            # Tensors are among those that take turns.
            if not isinstance(value, torch.Tensor) and now is not value and not same(value, now):
                yield f"{name} is {_changed(value, now)}"
        for entry in self._turns:
            yield from entry.changes()
        now = dict(self._hooked())
        for key, (said, hook) in now.items():
            if key not in self._hooks:
                yield f"{said} ({_named(hook)}) was registered, which no replay runs"
        for key, (said, hook) in self._hooks.items():
            if key not in now:
                yield f"{said} ({_named(hook)}) was removed, and a replay still does its work"

    def _all_hooks(self) -> Iterator[tuple[str, dict[Any, Any]]]:
        """Every place of hooks that concerns the step, with what errors call its hooks."""
        for path, module in self._modules.items():
            for attribute, kind in HOOKS.items():
                yield f"a {kind} of {path or 'the module'}", vars(module)[attribute]
        for tensor, name in self._tensors.items():
            for attribute, kind in OF_TENSORS.items():
                yield f"a {kind} of {name}", getattr(tensor, attribute) or {}
        for attribute, kind in OF_OPTIMIZERS.items():
            yield f"a {kind} of the optimizer", getattr(self._recipe.optimizer, attribute, {})
        for attribute in OF_ALL_MODULES:
            yield "a hook of all modules", getattr(of_modules, attribute)
        for attribute in OF_ALL_OPTIMIZERS:
            yield "a hook of all optimizers", getattr(of_optimizers, attribute)

    def _hooked(self) -> Iterator[tuple[tuple[str, int, int], tuple[str, Any]]]:
        for said, hooks in self._all_hooks():
            for number, hook in hooks.items():
                # That by which captures see optimizers step does nothing outside of them.
                if not (getattr(hook, "__module__", None) or "").startswith(OURS):
                    yield (said, number, id(hook)), (said, hook)


def _kinds(modules: Iterable[nn.Module]) -> Iterable[Any]:
    return dict.fromkeys(map(type, modules))


def _getter(names: tuple[str, ...]) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    """Reads these entries; of one alone ``itemgetter`` makes no tuple."""
    return itemgetter(*names, *names[: 2 - len(names)]) if len(names) < 2 else itemgetter(*names)


def _values(looks: Looks) -> Iterator[Any]:
    return chain.from_iterable(chain.from_iterable(map(get, dicts)) for get, dicts in looks)


def _shadowed(owner: object) -> set[str]:
    """Names of methods that an attribute of the instance would hide, and that none hides yet."""
    kind = type(owner)
    methods = {
        name
        for one in kind.__mro__
        if not one.__module__.startswith("torch.nn.modules.module")
        for name, value in vars(one).items()
        if callable(value)
    }
    return {*methods, *SHADOWS} - vars(owner).keys()


def _changed(was: object, now: object) -> str:
    if _printable(was) and _printable(now):
        return f"{now!r:.60}, was {was!r:.60}"
    return "gone" if now is ABSENT else f"another {type(now).__name__}"


def _is_simple(value: object) -> bool:
    return issubclass(type(value), torch.Tensor) or (is_constant(value) and not callable(value))


def _printable(value: object) -> bool:
    if type(value) is tuple:
        return all(map(_printable, value))
    return is_constant(value) and not callable(value)


def _named(hook: object) -> str:
    return str(getattr(hook, "__qualname__", type(hook).__qualname__))
