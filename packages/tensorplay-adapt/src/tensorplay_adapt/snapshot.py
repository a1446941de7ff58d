"""The state of a step: what it reads and writes beside its batch, by name; saved and put back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._ops import OpOverload
from torch.optim.lr_scheduler import LRScheduler

from tensorplay_core.errors import SignatureMismatch
from tensorplay_torch.graphing.eligibility import is_ddp
from tensorplay_torch.resources.storages import key_of
from tensorplay_torch.tracking.attributes import Attributes
from tensorplay_torch.tracking.culprit import frames
from tensorplay_torch.tracking.dispatch import CaptureDispatch, Listener
from tensorplay_torch.tracking.operations import describe
from tensorplay_torch.tracking.preservation import Preservation
from tensorplay_torch.tracking.ran import Ran
from tensorplay_torch.tracking.reached import Reached

from .reads import held_by, refused, settings_of
from .recipe import Recipe

OF_OPTIMIZERS = frozenset({"state", "param_groups", "_opt_called"})
"""Attributes that are compared and put back by themselves."""
__all__ = ["Before", "Snapshot", "named_state", "preserved", "reached_by"]


def named_state(recipe: Recipe) -> dict[str, torch.Tensor]:
    """Every tensor that lasts from one step to the next: of modules, optimizer, scaler, average."""
    found: dict[str, torch.Tensor] = {}
    names: dict[torch.Tensor, str] = {}

    def add(name: str, tensor: Any) -> None:
        if isinstance(tensor, torch.Tensor) and tensor not in names:
            names[tensor] = name
            found[name] = tensor

    for owner, module in reached_by(recipe).items():
        prefix = f"{owner}." if owner else ""
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            add(f"{prefix}{name}", tensor)
    for place, group in enumerate(recipe.optimizer.param_groups):
        for number, parameter in enumerate(group["params"]):
            add(f"param_groups[{place}]['params'][{number}]", parameter)
            for key, value in recipe.optimizer.state.get(parameter, {}).items():
                add(f"optimizer.state[{names[parameter]}][{key!r}]", value)
    if (scaler := recipe.features.scaler) is not None:
        add("scaler.scale", scaler._scale)
        add("scaler.growth_tracker", scaler._growth_tracker)
    return found


def functions_of(recipe: Recipe, ran: Sequence[Ran] = ()) -> dict[str, Reached]:
    """What the functions of a step run and read, by what errors call them.

    Args:
        recipe: The step.
        ran: Functions that ran in its capture, which count as the module's.
    """
    found = {"module": Reached(recipe.module, ran)}
    for name, function in (
        ("loss_function", recipe.loss_function),
        ("gradient_transform", recipe.gradient_transform),
    ):
        if function is not None:
            found[name] = Reached(function)
    if not type(recipe.optimizer).__module__.startswith("torch."):
        found["optimizer"] = Reached(recipe.optimizer.step)
    return found


def reached_by(
    recipe: Recipe, functions: Mapping[str, Reached] | None = None
) -> dict[str, torch.nn.Module]:
    """The outermost modules that a step runs or writes, by what errors call them.

    Args:
        recipe: The step.
        functions: What its functions reach; None if that is still to be found.
    """
    found = {"": recipe.module}
    inner = {id(module) for module in recipe.module.modules()}
    if recipe.features.ema is not None:
        found["ema"] = recipe.features.ema
        inner.update(id(module) for module in recipe.features.ema.modules())
    for name, reached in (functions or functions_of(recipe)).items():
        outer = reached.hidden if name == "module" else {**reached.roots, **reached.hidden}
        for path, module in outer.items():
            if id(module) not in inner:
                inner.update(id(part) for part in module.modules())
                called = path if name == "module" else f"{name}.{path}" if path else name
                found[called if called not in found else f"{called}#{len(found)}"] = module
    return found


def objects_of(recipe: Recipe) -> dict[str, object]:
    """Objects, beside modules, that the step's code is of or steers, by what errors call them.

    They are the owners of methods that it runs, schedules, and an optimizer that is not of torch.
    """
    found: dict[str, object] = {}
    for name, function in (
        ("loss_function", recipe.loss_function),
        ("gradient_transform", recipe.gradient_transform),
    ):
        if function is None:
            continue
        for path, owner in Reached(function).owners.items():
            found[f"{name}.{path}"] = owner
        for one in held_by(function):
            if isinstance(one, LRScheduler):
                found[f"{name}.{type(one).__name__}"] = one
    optimizer = recipe.optimizer
    found = {name: one for name, one in found.items() if one is not optimizer}
    if not type(optimizer).__module__.startswith("torch."):
        found["optimizer"] = optimizer
    return {name: one for name, one in found.items() if hasattr(one, "__dict__")}


class Before:
    """Everything that warm-up and capture may change, as it was when this was made.

    Memory is restored in place, also memory that nobody named but that an operation of the warm-up
    wrote; so are random states, attributes of modules, gradients and the keys of the optimizer.

    Args:
        recipe: The step.
        also: Further memory, which work that nobody watches may change.

    Attributes:
        preservation: Of memory and random states; a listener of a dispatch mode.
        written: What watched work wrote, and had not made.
        modules: Every module that the step runs or writes, by path.
        objects: What else keeps attributes that its code may set, by what errors call it.
    """

    def __init__(self, recipe: Recipe, also: Iterable[torch.Tensor] = ()) -> None:
        self._recipe = recipe
        self.written: list[torch.Tensor] = []
        self.preservation = Preservation(recipe.device, (*named_state(recipe).values(), *also))
        self.modules = {
            f"{owner}.{path}" if owner and path else owner or path: module
            for owner, outermost in reached_by(recipe).items()
            for path, module in outermost.named_modules()
            # What it keeps in Python of its buckets goes with what it keeps in C++.
            if not is_ddp(module)
        }
        self.objects = objects_of(recipe)
        self._attributes = Attributes({**self.modules, **self.objects}, OF_OPTIMIZERS)
        self._grads = [(one, one.grad) for one in recipe.parameters()]
        self._entries = {key: dict(state) for key, state in recipe.optimizer.state.items() if state}
        self._groups = [dict(group) for group in recipe.optimizer.param_groups]

    @contextmanager
    def watching(self, *others: Listener) -> Iterator[None]:
        """Notes what memory the work of the block is about to change, beside what has a name.

        Args:
            others: Further listeners.
        """
        rates = {
            key_of(value): key
            for key, value in settings_of(self._recipe.optimizer).items()
            if isinstance(value, torch.Tensor)
        }
        writes = _Writes(self.preservation, self.written, rates)
        dispatch = CaptureDispatch([self.preservation, writes, *others])
        dispatch.start()
        try:
            yield
        finally:
            dispatch.stop()

    def born(self) -> Iterator[tuple[Any, str]]:
        """Parameter and key of each entry of optimizer state that is new."""
        for key, state in self._recipe.optimizer.state.items():
            before = self._entries.get(key, {})
            yield from ((key, name) for name in state if name not in before)

    def bound(self) -> list[str]:
        """What attributes the work has set so far, by path."""
        return sorted(name for name in self._attributes.changes() if not name.endswith(".grad"))

    def restore_memory(self) -> None:
        """Puts memory and random states back. No work may be under way."""
        self.preservation.restore()

    def restore_bindings(self) -> None:
        """Binds attributes, gradients and settings of the optimizer as they were."""
        self._attributes.restore()
        for parameter, grad in self._grads:
            if parameter.grad is not grad:
                parameter.grad = grad
        optimizer: torch.optim.Optimizer = self._recipe.optimizer
        for before, group in zip(self._groups, optimizer.param_groups, strict=True):
            for name in group.keys() - before.keys():
                del group[name]
            group.update(before)
        if (scaler := self._recipe.features.scaler) is not None:
            scaler._per_optimizer_states.pop(id(optimizer), None)

    def forget_state(self) -> None:
        """Takes away optimizer state that is new."""
        state = self._recipe.optimizer.state
        for key in list(state):
            if key not in self._entries:
                del state[key]
        for key, before in self._entries.items():
            state[key] = state.get(key, {})
            for name in state[key].keys() - before.keys():
                del state[key][name]
            state[key].update(before)


class _Writes:
    """Takes down what operations write; a listener of a dispatch mode."""

    def __init__(
        self,
        preservation: Preservation,
        written: list[torch.Tensor],
        rates: Mapping[int, tuple[int, str]],
    ) -> None:
        self._preservation, self._written, self._rates = preservation, written, rates

    def before(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """``func`` is about to run."""
        if isinstance(func, OpOverload):
            for tensor in describe(func).written(args, kwargs):
                if not self._preservation.is_born(tensor):
                    self._written.append(tensor.detach())
                    if self._rates and key_of(tensor) in self._rates and _scheduled():
                        raise refused(*self._rates[key_of(tensor)])

    def after(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Nothing more is to be seen."""


def _scheduled() -> bool:
    """True if a schedule is at work: what it writes comes from a count that it keeps in Python."""
    return any(isinstance(frame.f_locals.get("self"), LRScheduler) for frame in frames())


@contextmanager
def preserved(recipe: Recipe, also: Iterable[torch.Tensor] = ()) -> Iterator[Before]:
    """Puts back what steps that are taken in the block change.

    Args:
        recipe: The step.
        also: Memory without a name that they change. What a watched step changes is put back, too.
    """
    before = Before(recipe, also)
    try:
        with torch.inference_mode(False):
            yield before
    finally:
        if recipe.device.type == "cuda":
            torch.cuda.synchronize(recipe.device)
        before.restore_memory()
        before.restore_bindings()


class Snapshot:
    """Model, optimizer, scaler and average of a step as they were when it was taken.

    Args:
        tensors: By name; they are copied.
        fresh: No step had been taken yet.
    """

    def __init__(self, tensors: dict[str, torch.Tensor], *, fresh: bool) -> None:
        with torch.no_grad():
            self._tensors = {name: one.detach().clone() for name, one in tensors.items()}
        self.fresh = fresh

    def __repr__(self) -> str:
        mebibytes = sum(one.nbytes for one in self._tensors.values()) / 2**20
        return f"<snapshot of {len(self._tensors)} tensors, {mebibytes:.1f} MiB>"

    def tensors_for(self, names: list[str]) -> list[torch.Tensor]:
        """Its tensors in the order of ``names``.

        Raises:
            SignatureMismatch: It is of another state.
        """
        missing = [f"{name}: not in the snapshot" for name in names if name not in self._tensors]
        extra = [f"{name}: in the snapshot only" for name in self._tensors if name not in names]
        if missing or extra:
            raise SignatureMismatch(
                differences=missing + extra,
                subject=repr(self),
                doing="resetting to",
                remedy="Take a snapshot of this step: step.snapshot().",
            )
        return [self._tensors[name] for name in names]
