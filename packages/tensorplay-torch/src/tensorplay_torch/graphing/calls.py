"""A call without gradients: check, copy, launch, and hand back copies of the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from tensorplay_core.errors import SignatureMismatch
from tensorplay_torch.compiled import parts
from tensorplay_torch.compiled import written as count_writes

from .arguments import Arguments
from .lanes import Chain, reentered
from .outputs import Outputs
from .passes import Forward

if TYPE_CHECKING:
    import torch

__all__ = ["Aliases", "Call", "bare_call", "explained", "requirements"]

Call = Callable[[tuple[Any, ...], dict[str, Any]], Any]
_requires_grad = attrgetter("requires_grad")


def bare_call(
    forward: Forward,
    arguments: Arguments,
    chain: Chain,
    place: int,
    *,
    subject: str,
    alias: bool,
    strict: bool = False,
) -> Call:
    """The call that replays ``forward`` and nothing else.

    Args:
        forward: The recorded forward.
        arguments: The form of the call.
        chain: The callables captured into the same pool.
        place: This one's place among them.
        subject: What errors call the callable.
        alias: Hand back the graph's own results.
        strict: Inputs must require grad as at the capture: grad mode is on.
    """
    plain, take, count = arguments.plain, arguments.take, len(arguments.tensors)
    run, build = forward.run, forward.outputs.build
    lane = chain.lane
    lock, held, follow, launched = lane.lock, lane.held, lane.follow, chain.launched
    written = forward.written
    aliases = Aliases(forward.outputs) if alias else None

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inputs = args if plain and not kwargs and len(args) == count else take(args, kwargs)
        if strict and requirements(inputs) != arguments.requires:
            raise arguments.mismatch(args, kwargs)
        if held():
            raise reentered(subject)
        try:
            with lock:
                follow()
                results = run(inputs)
                launched(place)
            if written:
                count_writes(written)
        except SignatureMismatch as error:
            raise explained(error, arguments, args, kwargs) from None
        return build(inputs, results if aliases is None else aliases())

    return call


class Aliases:
    """Results that are the graph's own memory.

    Args:
        outputs: Of the graph.
    """

    def __init__(self, outputs: Outputs) -> None:
        self._buffers, self._rewritten = outputs.buffers, outputs.rewritten
        compiled = parts()
        self._aliases = _aliases if compiled is None else compiled.aliases

    def __call__(self) -> tuple[torch.Tensor, ...]:
        """Tensors over the memory that a launch has just overwritten.

        The write is counted: autograd refuses a backward that saved what was there before.
        """
        count_writes(self._rewritten)
        return self._aliases(self._buffers)


def _aliases(buffers: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return tuple([buffer.detach() for buffer in buffers])


def requirements(inputs: Sequence[Any]) -> list[bool] | None:
    """Which of them require grad; None if one is no tensor."""
    try:
        return list(map(_requires_grad, inputs))
    except AttributeError:
        return None


def explained(
    error: SignatureMismatch,
    arguments: Arguments,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> SignatureMismatch:
    """The error by the callable's own names, for what staging met."""
    named = arguments.mismatch(args, kwargs)
    return named if named.differences else error
