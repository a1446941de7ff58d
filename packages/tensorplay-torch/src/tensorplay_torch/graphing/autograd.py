"""A call with gradients: the recorded forward and backward as one function of autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, cast

import torch
from torch import nn

from tensorplay_core.errors import GraphStateError, SignatureMismatch, StaleGraph
from tensorplay_torch._private import required
from tensorplay_torch.compiled import parts, written

from .arguments import Arguments
from .calls import Aliases, explained, requirements
from .differentiation import Leaf
from .lanes import Ticket, reentered
from .passes import Backward, Forward
from .slots import Slot, choose

__all__ = ["TrainingCall"]


_version = attrgetter("_version")


def _is_there(gradient: torch.Tensor | None) -> bool:
    return gradient is not None


def _versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    return list(map(_version, tensors))


class GraphedCall(torch.autograd.Function):
    """Autograd's node for one call: its forward and its backward are replays."""

    @staticmethod
    def forward(ctx: Any, call: TrainingCall, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Replays the forward of ``call``."""
        ctx.call = call
        results = call.forward(ctx, tensors[: call.count])
        ctx.set_materialize_grads(False)
        if call.fixed:
            ctx.mark_non_differentiable(*[results[n] for n in call.fixed])
        return results

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Replays its backward."""
        call: TrainingCall = ctx.call
        given = tuple([grads[n] for n in call.differentiable]) if call.fixed else grads
        # To list the next nodes takes as long as a launch.
        whole = call.executes is None or call.executes(ctx.next_functions[-1][0])
        return None, *call.backward(ctx, given, whole)


# torch's own ``apply`` first looks for wrappers of dead transforms among the arguments, one by one.
# Inside a transform the callable runs without graphs, so there are none here.
_apply: Any = super(torch.autograd.Function, GraphedCall).apply


class Context:
    """What a backward needs of its forward, where compiled parts are the node."""

    __slots__ = ("slot", "ticket")

    slot: Slot
    ticket: Ticket


class Once(torch.autograd.Function):
    """Lets gradients through that were asked for with ``create_graph``, and no second backward."""

    @staticmethod
    def forward(ctx: Any, subject: str, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Aliases of ``grads``."""
        ctx.subject = subject
        return tuple([grad.view_as(grad) for grad in grads])

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        """Refuses."""
        raise GraphStateError(
            doing="differentiating twice through",
            subject=ctx.subject,
            met="its backward was recorded, and a recording has no derivative",
            remedy="Use the callable without graphs for double backward: tensorplay_torch.release.",
        )


class TrainingCall:
    """One callable's slots as a function of its inputs and of the leaves that it reads.

    Args:
        slots: Each with its own graphs and buffers.
        arguments: The form of the call.
        subject: What errors call the callable.
        alias: Hand back the graphs' own results.
        in_graph: Parameters' gradients are added inside the graph.

    Attributes:
        count: Of its inputs.
        differentiable: Places of the results that have a gradient.
        fixed: Those of the others.
        executes: Called with the node of the last leaf it returns True if that is to run in the
            present backward; None where that does not matter, or compiled parts know.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        arguments: Arguments,
        *,
        device: torch.device,
        subject: str,
        alias: bool,
        in_graph: bool,
    ) -> None:
        forward = slots[0].forward
        self._slots, self._arguments, self._requires = list(slots), arguments, arguments.requires
        self._subject, self._alias, self._device = subject, alias, device.type
        self._plain, self.count = arguments.plain, len(arguments.requires)
        self._build = forward.outputs.build
        self._aliases = {id(slot): Aliases(slot.forward.outputs) for slot in slots}
        self.differentiable = forward.outputs.differentiable
        total = range(len(forward.outputs.buffers))
        self.fixed = [n for n in total if n not in self.differentiable]
        # With one result there is one backward, and it always has its gradient.
        self._single = len(total) == 1
        self._only = slots[0] if len(slots) == 1 and not alias else None
        leaves = [leaf for leaf in forward.leaves if leaf.real is not None]
        self._read, self._names = _read(forward, leaves)
        self._written = forward.written
        self._once = not slots[0].retains
        # Aliases are views, whose history is autograd's own business.
        self._compiled = None if alias else parts()
        self._versions = _versions if self._compiled is None else self._compiled.versions
        self.executes: Callable[[Any], bool] | None = None
        self._leaves = () if in_graph else tuple(leaf.real for leaf in leaves)
        if in_graph and self._compiled is None:
            # Stands for the parameters: it lets the outputs require grad, and gets none itself.
            self._leaves = (torch.zeros((), requires_grad=True),)
            self.executes = required("will_execute", "graphing with param_grads='in_graph'")
        self._in_graph = in_graph
        # Of what backward returns, the inputs come first, then the leaves.
        places = {id(leaf): self.count + n for n, leaf in enumerate(leaves)}
        self._targets = [
            leaf.place if leaf.real is None else places[id(leaf)] for leaf in forward.leaves
        ]
        self._width = self.count + len(self._leaves)
        self._prepare_straight()

    def _prepare_straight(self) -> None:
        """Where gradients go when every leaf gets one, and they follow one another."""
        targets = self._targets
        first = targets[0]
        self._straight = targets == list(range(first, first + len(targets)))
        self._ahead = (None,) * first
        self._behind = (None,) * (self._width - first - len(targets))

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the callable with gradients.

        Raises:
            SignatureMismatch: The call differs from the one that was captured.
            StaleGraph: With aliases, all slots are in use.
        """
        if self._plain and not kwargs and len(args) == self.count:
            inputs: tuple[Any, ...] = args
        else:
            inputs = self._arguments.take(args, kwargs)
        if requirements(inputs) != self._requires:
            raise self._arguments.mismatch(args, kwargs)
        if self._in_graph and _inside_ddp():
            raise self._refused_under_ddp()
        compiled = self._compiled
        try:
            if compiled is None:
                owned = _apply(self, *inputs, *self._leaves)
            else:
                context = Context()
                owned = self.forward(context, inputs)
                compiled.connect(
                    self.backward,
                    context,
                    (*inputs, *self._leaves),
                    owned,
                    self.differentiable,
                    self._in_graph,
                    self._once,
                )
        except SignatureMismatch as error:
            raise explained(error, self._arguments, args, kwargs) from None
        return self._build(inputs, owned)

    def forward(self, ctx: Any, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Replays a slot's forward, and leaves in ``ctx`` what its backward needs."""
        slot = self._only or choose(self._slots, alias=self._alias, subject=self._subject)
        chain = slot.chain
        lane = chain.lane
        if lane.held():
            raise reentered(self._subject)
        with lane.lock:
            lane.follow()
            results = slot.forward.run(inputs)
            ctx.ticket = ticket = slot.issue(chain.launched(slot.place))
        ctx.slot = slot
        if self._written:
            written(self._written)
        ticket.versions = self._versions(self._read)
        return self._aliases[id(slot)]() if self._alias else results

    def backward(
        self, ctx: Any, grads: tuple[torch.Tensor | None, ...], whole: bool
    ) -> Sequence[torch.Tensor | None]:
        """Replays the backward of the slot that the forward ran in.

        Args:
            ctx: Of that forward.
            grads: Of the results that have one.
            whole: All gradients were asked for, not chosen ones; it counts with gradients that are
                added inside the graph.

        Returns:
            A gradient for each input and leaf.

        Raises:
            StaleGraph: What the forward left was overwritten meanwhile.
            GraphStateError: Autocast is on, or gradients would go where they were not asked for.
        """
        if not any(map(_is_there, grads)):
            return [None] * self._width
        slot: Slot = ctx.slot
        ticket: Ticket = ctx.ticket
        if torch.is_autocast_enabled(self._device):
            raise self._refused_under_autocast()
        if self._versions(self._read) != ticket.versions:
            raise self._refused_changed(ticket.versions)
        if self._in_graph and not whole:
            raise self._refused_partial()
        recorded = slot.whole if self._single else None
        if recorded is None:
            recorded = slot.backward(tuple([grad is not None for grad in grads]), ticket)
            grads = tuple([grad for grad in grads if grad is not None])
        accumulation = recorded.accumulation
        chain = slot.chain
        lane = chain.lane
        if lane.held():
            raise reentered(self._subject)
        with lane.lock:
            ticket.check()
            lane.follow()
            if accumulation is not None:
                accumulation.settle()
            results = _replayed(recorded, cast("tuple[torch.Tensor, ...]", grads))
            chain.launched(slot.place)
            ticket.spent = not slot.retains
            if accumulation is not None:
                accumulation.deliver()
        if torch.is_grad_enabled() and results:
            once: Any = Once.apply
            results = once(self._subject, *[one.requires_grad_() for one in results])
        if recorded.complete and self._straight:
            return (*self._ahead, *results, *self._behind)
        returned: list[torch.Tensor | None] = [None] * self._width
        for leaf, place in recorded.places:
            returned[self._targets[leaf]] = results[place]
        return returned

    def _refused_under_autocast(self) -> GraphStateError:
        return GraphStateError(
            doing="running the backward of",
            subject=self._subject,
            met="autocast is on, and the backward was captured without it, as torch advises",
            remedy="Call backward() outside of the autocast block.",
        )

    def _refused_changed(self, before: list[int]) -> StaleGraph:
        now = self._versions(self._read)
        names = [
            name for name, new, old in zip(self._names, now, before, strict=True) if new != old
        ]
        return StaleGraph(
            doing="running the backward of",
            subject=self._subject,
            met=f"changed in place since the forward: {', '.join(names)}",
            remedy="Step the optimizer after the backward; eager refuses this as well.",
        )

    def _refused_under_ddp(self) -> GraphStateError:
        return GraphStateError(
            doing="calling",
            subject=self._subject,
            met="it is part of a DistributedDataParallel module, whose reducer would see no "
            "gradient of what is added inside the graph",
            remedy="Graph it with param_grads='autograd'.",
        )

    def _refused_partial(self) -> GraphStateError:
        return GraphStateError(
            doing="running the backward of",
            subject=self._subject,
            met="only chosen gradients were asked for (torch.autograd.grad, or backward(inputs=)), "
            "and with param_grads='in_graph' those of the parameters would be added all the same",
            remedy="Call backward(), or graph with param_grads='autograd'.",
        )


def _read(forward: Forward, leaves: Sequence[Leaf]) -> tuple[list[torch.Tensor], list[str]]:
    """What a backward reads of memory that others may write, and what errors call it."""
    saved = forward.saving.saved
    if saved or not forward.compiled:
        return [one.tensor for one in saved], [one.name for one in saved]
    # What compiled regions save cannot be seen.
    known = [(leaf.real, leaf.name) for leaf in leaves if leaf.real is not None]
    return [real for real, _ in known], [name for _, name in known]


def _inside_ddp() -> bool:
    """True during the forward of a DistributedDataParallel module."""
    return getattr(nn.parallel.DistributedDataParallel, "_active_ddp_module", None) is not None


def _replayed(recorded: Backward, gradients: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    for gradient, stride in zip(gradients, recorded.strides, strict=True):
        if gradient.stride() != stride:
            # Autograd brings gradients of any strides; those of sum() are expanded.
            dense = zip(recorded.seeds, gradients, strict=True)
            return recorded.run([seed.copy_(one.detach()) for seed, one in dense])
    return recorded.run(gradients)
