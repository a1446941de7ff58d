"""A function with buffers for its arguments, run in rounds whose outcomes can be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tensorplay_core.errors import ArgumentError, SignatureMismatch
from tensorplay_torch.resources.devices import resolve_device
from tensorplay_torch.resources.storages import key_of
from tensorplay_torch.structure import structure_of
from tensorplay_torch.tracking.fixed import same
from tensorplay_torch.tracking.reached import Reached

from .comparison import difference, drawn_like
from .findings import named

__all__ = ["Outcome", "Trial", "differences"]

SEED = 20240229


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a round left.

    Attributes:
        values: Results, gradients and arguments, by name.
        states: The memory of what was written from outside, by key of its storage.
        random: States of the random generators.
    """

    values: dict[str, Any]
    states: dict[int, torch.Tensor]
    random: list[torch.Tensor]


class Trial:
    """See the module.

    Args:
        function: What is called.
        args: Of the call; tensors are copied.
        kwargs: The same.

    Attributes:
        given: Values of the tensors among the arguments.
        subject: What errors call the function.
        device: Where it runs.
        reached: The modules that it runs.

    Raises:
        ArgumentError: A tensor is expanded.
    """

    def __init__(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self._function, self._kwargs = function, dict(kwargs)
        self._leaves: list[Any] = []
        self._structure = structure_of((tuple(args), self._kwargs), self._leaves)
        self._paths = list(map(_spelled, self._structure.paths("")))
        self._places = [n for n, one in enumerate(self._leaves) if isinstance(one, torch.Tensor)]
        self.given = [self._leaves[place].detach().clone() for place in self._places]
        self.subject = f"function {getattr(function, '__qualname__', type(function).__qualname__)}"
        if isinstance(function, torch.nn.Module):
            self.subject = f"module {type(function).__name__}"
        self._buffers = self._copies()
        self.reached = Reached(function)
        tensors = [*self._buffers, *self.state_tensors()]
        self.device: torch.device = tensors[0].device if tensors else resolve_device(None)
        self._differentiates: bool | None = None
        self._seeds: list[torch.Tensor] = []

    def drawn(self, number: int) -> list[torch.Tensor]:
        """Inputs like those given, others for each number."""
        generator = torch.Generator().manual_seed(SEED + number)
        return [drawn_like(value, generator) for value in self.given]

    def taken(self, args: tuple[Any, ...]) -> list[torch.Tensor]:
        """Inputs that the user gives.

        Raises:
            SignatureMismatch: They are not like the first.
        """
        value, leaves = (tuple(args), self._kwargs), list[Any]()
        found = list(map(_spelled, self._structure.differences(value, "")))
        if not found and self._structure.take(value, leaves):
            pairs = zip(self._paths, self._leaves, leaves, strict=True)
            found = [line for path, ours, theirs in pairs for line in _unlike(path, ours, theirs)]
        if found:
            raise SignatureMismatch(
                differences=found,
                doing="comparing replays of",
                subject=self.subject,
                remedy="Pass fresh_inputs=[(...), ...], each like args: a graph has one signature.",
            )
        return [leaves[place].detach().clone() for place in self._places]

    def load(self, values: Sequence[torch.Tensor]) -> None:
        """Puts inputs into the buffers."""
        with torch.no_grad():
            for buffer, value in zip(self._buffers, values, strict=True):
                buffer.copy_(value)

    def forget_grads(self) -> None:
        """The buffers have no gradients."""
        for buffer in self._buffers:
            buffer.grad = None

    def call(self) -> dict[str, Any]:
        """Calls the function on the buffers: results, and their gradients, by name."""
        leaves = list(self._leaves)
        for place, buffer in zip(self._places, self._buffers, strict=True):
            leaves[place] = buffer
        args, kwargs = self._structure.build(iter(leaves))
        results: list[Any] = []
        structure = structure_of(self._function(*args, **kwargs), results)
        values = dict(zip(structure.paths("output"), results, strict=True))
        return {**values, **self._gradients([one for one in results if _has_history(one)])}

    def outcome(
        self,
        results: Mapping[str, Any],
        written: Mapping[int, torch.Tensor],
        random: list[torch.Tensor],
    ) -> Outcome:
        """What a round left, in copies."""
        values = {name: _kept(value) for name, value in results.items()}
        for place, buffer in zip(self._places, self._buffers, strict=True):
            values[f"{self._paths[place]} afterwards"] = _kept(buffer)
        for name, tensor in self.named():
            if tensor.is_leaf and tensor.requires_grad:
                values[f"{name}.grad"] = _kept(tensor.grad)
        return Outcome(values, {key: _whole(one) for key, one in written.items()}, random)

    def written(self, others: Mapping[Any, torch.Tensor]) -> dict[int, torch.Tensor]:
        """What a call may write from outside: the state of modules, and ``others``."""
        found = {key_of(tensor): tensor for tensor in self.state_tensors()}
        own = {key_of(buffer) for buffer in self._buffers}
        for tensor in others.values():
            if key_of(tensor) not in own:
                found.setdefault(key_of(tensor), tensor)
        return found

    def state_tensors(self) -> list[torch.Tensor]:
        """Parameters and buffers."""
        pairs = (*self.reached.parameters(), *self.reached.buffers())
        return [tensor for _, tensor in pairs if tensor.layout is torch.strided]

    def named(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Everything that has a name."""
        for place, buffer in zip(self._places, self._buffers, strict=True):
            yield self._paths[place], buffer
        yield from self.reached.parameters()
        yield from self.reached.buffers()

    def _gradients(self, outputs: list[torch.Tensor]) -> dict[str, Any]:
        leaves = list(_leaves_of(outputs)) if self._differentiates is not False else []
        if not leaves:
            return {}
        if not self._seeds:
            self._seeds = [_seed(one) for one in outputs]
        try:
            found = torch.autograd.grad(outputs, leaves, self._seeds, allow_unused=True)
        except RuntimeError as error:
            if self._differentiates is None and "backward through the graph" in str(error):
                # The function runs the backward pass itself.
                self._differentiates = False
                return {}
            raise
        self._differentiates = True
        names = named(self.named())
        return {
            f"gradient of {names.get(key_of(leaf), f'a leaf of shape {tuple(leaf.shape)}')}": grad
            for leaf, grad in zip(leaves, found, strict=True)
        }

    def _copies(self) -> list[torch.Tensor]:
        """Buffers; what shares memory, or is one object, goes on doing so."""
        storages: dict[int, torch.UntypedStorage] = {}
        made: dict[int, torch.Tensor] = {}
        for place in self._places:
            tensor = self._leaves[place]
            if any(
                n > 1 and not step for n, step in zip(tensor.shape, tensor.stride(), strict=True)
            ):
                raise ArgumentError(
                    doing="comparing replays of",
                    subject=self.subject,
                    met=f"{self._paths[place]} is expanded, so its elements share memory",
                    remedy="Pass x.contiguous().",
                )
            if id(tensor) not in made:
                key = key_of(tensor)
                if key not in storages:
                    storages[key] = tensor.untyped_storage().clone()
                with torch.inference_mode(False):
                    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
                    place_in = (tensor.storage_offset(), tensor.size(), tensor.stride())
                    copy.set_(storages[key], *place_in).requires_grad_(tensor.requires_grad)
                made[id(tensor)] = copy
        return [made[id(self._leaves[place])] for place in self._places]


def differences(eager: Outcome, replay: Outcome, names: Mapping[int, str]) -> Iterator[str]:
    """How ``replay`` is not ``eager``, one line each.

    Args:
        eager: What is right.
        replay: What is to be equal.
        names: Of storages, by key.
    """
    for name in dict.fromkeys((*eager.values, *replay.values)):
        said = _differ(eager.values.get(name), replay.values.get(name))
        if said:
            yield f"{name}: {said}"
    for key, before in eager.states.items():
        said = difference(before, replay.states.get(key))
        if said:
            name = names.get(key, f"a tensor of {before.numel()} elements that it writes")
            yield f"{name} afterwards: {said}"
    for device, before, after in zip(("CPU", "GPU"), eager.random, replay.random, strict=False):
        if not torch.equal(before, after):
            yield f"the random generator of the {device} afterwards: it is in another state"


def _differ(eager: Any, replay: Any) -> str:
    if isinstance(eager, torch.Tensor) or isinstance(replay, torch.Tensor):
        tensors = [one if isinstance(one, torch.Tensor) else None for one in (eager, replay)]
        return difference(*tensors)
    if eager is replay or same(eager, replay) or _equal(eager, replay):
        return ""
    return f"eager gives {eager!r:.80}, replay {replay!r:.80}"


def _equal(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _spelled(path: str) -> str:
    """``[0][1]`` of arguments and keywords as ``args[1]``."""
    name = "args" if path.startswith("[0]") else "kwargs"
    return f"{name}{path[3:]}"


def _unlike(path: str, ours: Any, theirs: Any) -> Iterator[str]:
    if not isinstance(ours, torch.Tensor):
        if not same(ours, theirs):
            yield f"{path}: captured {ours!r:.80}, got {theirs!r:.80}"
    elif not isinstance(theirs, torch.Tensor):
        yield f"{path}: captured a tensor, got {type(theirs).__name__}"
    else:
        facts = (
            ("shape", tuple(ours.shape), tuple(theirs.shape)),
            ("dtype", ours.dtype, theirs.dtype),
            ("device", ours.device, theirs.device),
        )
        for what, was, got in facts:
            if was != got:
                yield f"{path}.{what}: captured {was}, got {got}"


def _has_history(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.grad_fn is not None


def _leaves_of(outputs: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The leaves that outputs were computed from, in the order in which they are met."""
    pending = [one.grad_fn for one in outputs]
    seen = set(pending)
    while pending:
        node: Any = pending.pop()
        if hasattr(node, "variable"):
            yield node.variable
        for parent, _ in node.next_functions:
            if parent is not None and parent not in seen:
                seen.add(parent)
                pending.append(parent)


def _seed(output: torch.Tensor) -> torch.Tensor:
    """A gradient that weights each element by its place, so that no two are alike."""
    weights = torch.linspace(-1.0, 2.0, output.numel(), device=output.device)
    return weights.view(output.shape).to(output.dtype)


def _kept(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of all the memory under a tensor, as a row of its elements where they fit."""
    with torch.inference_mode(False):
        storage = tensor.untyped_storage().clone()
        fits = storage.nbytes() % tensor.dtype.itemsize == 0
        dtype = tensor.dtype if fits else torch.uint8
        row = torch.empty(0, dtype=dtype, device=tensor.device)
        return row.set_(storage, 0, (storage.nbytes() // dtype.itemsize,), (1,))
