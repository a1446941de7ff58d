"""``assert_replay_equals_eager``: for users' own tests, that a graph does what eager code does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tensorplay_core import graph
from tensorplay_core.errors import ArgumentError, GraphStateError
from tensorplay_torch.graphing.callables import refuse_graphed
from tensorplay_torch.graphing.graphed import GraphedFunction
from tensorplay_torch.graphing.nesting import inside
from tensorplay_torch.graphs import CUDAGraph
from tensorplay_torch.resources.versions import Versions
from tensorplay_torch.tracking.attributes import Attributes
from tensorplay_torch.tracking.dispatch import CaptureDispatch
from tensorplay_torch.tracking.operations import tensors_in
from tensorplay_torch.tracking.preservation import Preservation
from tensorplay_torch.tracking.state import Bindings

from .findings import named
from .trial import Outcome, Trial, differences

__all__ = ["assert_replay_equals_eager"]

LISTED = 20
"""More differences than these are only counted."""


def assert_replay_equals_eager(
    function: Callable[..., Any],
    /,
    *args: Any,
    fresh_inputs: Iterable[tuple[Any, ...]] | None = None,
    rounds: int = 3,
    **kwargs: Any,
) -> None:
    """Runs ``function`` eagerly and as a graph, from one state, and compares everything.

    It is called eagerly for several inputs in a row, then captured once, on the first of them, and
    replayed for the same inputs from the same state. After each round results, gradients, all that
    it wrote and the random generators must be equal bit for bit. Results that require grad are
    differentiated too, inside the graph. Afterwards all of that is as it was before.

    Ask for ``torch.use_deterministic_algorithms(True)`` where kernels are free to differ. A step
    that creates optimizer state is to be warmed up: take it once before.

    Args:
        function: A function of tensors, a training step, or a module.
        args: Of a call; tensors are copied and never changed.
        fresh_inputs: Positional arguments of further rounds, like ``args``. None draws them: floats
            in the range of those given, integers from among them.
        rounds: How many rounds where inputs are drawn, at least 2.
        kwargs: Of each call.

    Raises:
        AssertionError: Something differs: what, in which round, and by how much.
        CaptureError: It cannot be captured; ``preflight`` lists why.
        ArgumentError: ``rounds`` is less than 2, or an argument is expanded.
        SignatureMismatch: An input of ``fresh_inputs`` is not like ``args``.
        GraphStateError: It is graphed already, or a capture is under way here.
    """
    if isinstance(function, GraphedFunction):
        function = function.original
    refuse_graphed(function)
    if not isinstance(rounds, int) or rounds < 2:
        raise ArgumentError(
            doing="reading",
            subject="argument rounds",
            met=f"it is {rounds!r}",
            remedy="Pass an integer of at least 2: one replay says little.",
        )
    trial = Trial(function, args, kwargs)
    if inside(trial.device):
        raise GraphStateError(
            doing="comparing replays of",
            subject=trial.subject,
            met="a capture is under way in this thread",
            remedy="Compare outside captures.",
        )
    if fresh_inputs is None:
        inputs = [trial.given, *map(trial.drawn, range(1, rounds))]
    else:
        inputs = [trial.given, *map(trial.taken, fresh_inputs)]
    found = _compared(trial, inputs)
    if found:
        more = len(found) - LISTED
        lines = [*found[:LISTED], *([f"and {more} more"] if more > 0 else [])]
        places = f"{len(found)} place{'' if len(found) == 1 else 's'}"
        raise AssertionError(
            f"replay of {trial.subject} differs from eager in {places}:"
            + "".join(f"\n  {line}" for line in lines)
        )


def _compared(trial: Trial, inputs: Sequence[list[torch.Tensor]]) -> list[str]:
    """Every difference, one line each."""
    attributes = Attributes(trial.reached.modules)
    _synchronize(trial.device)
    preservation = Preservation(trial.device, trial.state_tensors())
    bindings = Bindings(preservation.is_born)
    bindings.start()
    try:
        try:
            eager = list(_eager_rounds(trial, inputs, preservation, bindings))
        finally:
            bindings.stop()
            _synchronize(trial.device)
            preservation.restore()
            _rebind(trial, bindings, attributes)
        written = trial.written(preservation.written)
        with _put_back(written, trial.device):
            return list(_replayed_differences(trial, inputs, eager, written))
    finally:
        _rebind(trial, bindings, attributes)
        bindings.forget()


def _eager_rounds(
    trial: Trial,
    inputs: Sequence[list[torch.Tensor]],
    preservation: Preservation,
    bindings: Bindings,
) -> Iterator[Outcome]:
    for values in inputs:
        trial.load(values)
        trial.forget_grads()
        dispatch = CaptureDispatch([_Leaves(bindings), preservation])
        dispatch.start()
        try:
            results = trial.call()
        finally:
            dispatch.stop()
        written = trial.written(preservation.written)
        yield trial.outcome(results, written, _random(trial.device))


def _replayed_differences(
    trial: Trial,
    inputs: Sequence[list[torch.Tensor]],
    eager: Sequence[Outcome],
    written: Mapping[int, torch.Tensor],
) -> Iterator[str]:
    made = CUDAGraph(device=trial.device)
    names = named(trial.named())
    try:
        trial.load(inputs[0])
        with graph(made, allow_empty=True):
            results = trial.call()
        for number, (values, expected) in enumerate(zip(inputs, eager, strict=True), 1):
            trial.load(values)
            made.replay()
            outcome = trial.outcome(results, written, _random(trial.device))
            for line in differences(expected, outcome, names):
                yield f"round {number}, {line}"
    finally:
        made.close()


@contextmanager
def _put_back(written: Mapping[int, torch.Tensor], device: torch.device) -> Iterator[None]:
    """Afterwards memory, its versions and the random generators are as they are now."""
    saved = [(one.untyped_storage(), one.untyped_storage().clone()) for one in written.values()]
    versions, random = Versions(), _random(device)
    for tensor in written.values():
        versions.note(tensor)
    try:
        yield
    finally:
        _synchronize(device)
        for storage, values in saved:
            storage.copy_(values)
        _synchronize(device)
        versions.restore()
        torch.set_rng_state(random[0])
        if device.type == "cuda":
            torch.cuda.set_rng_state(random[1], device)


def _rebind(trial: Trial, bindings: Bindings, attributes: Attributes) -> None:
    bindings.restore()
    attributes.restore()
    trial.forget_grads()
    torch.clear_autocast_cache()


def _random(device: torch.device) -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class _Leaves:
    """Tells of the parameters that are used, so that their gradients are bound again."""

    def __init__(self, bindings: Bindings) -> None:
        self._bindings = bindings

    def before(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        for tensor in tensors_in((*args, *kwargs.values())):
            if tensor.requires_grad:
                self._bindings.leaf(tensor)

    def after(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Nothing more is to be seen."""
