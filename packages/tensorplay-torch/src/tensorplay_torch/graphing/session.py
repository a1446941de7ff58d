"""Warming up and capturing callables so that nothing of it remains but the graphs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from tensorplay_core.runtime import select
from tensorplay_torch.graphs import DRIVER
from tensorplay_torch.resources.generators import serves
from tensorplay_torch.tracking.attributes import Attributes
from tensorplay_torch.tracking.dispatch import CaptureDispatch
from tensorplay_torch.tracking.names import Names
from tensorplay_torch.tracking.preservation import Preservation
from tensorplay_torch.tracking.repeats import Repeats
from tensorplay_torch.tracking.state import Bindings
from tensorplay_torch.tracking.surroundings import steady_streams

from .candidate import Candidate
from .differentiation import Leaf, gradients, history_begins, leaves_of, refuse_unused
from .lasting import Lasting
from .nesting import recording
from .outputs import Outputs
from .passes import Forward, known_objects, noted, record_forward
from .purity import drawn_elsewhere, refuse_backward, refuse_changing
from .settings import Settings
from .substitution import StandIns, substituted

__all__ = ["Session", "session"]


class Session:
    """Callables of one device, with stand-ins in the place of their parameters.

    Args:
        candidates: The callables, in the order of their calls.
        stand_ins: Of all their parameters.
        differentiate: Gradients are wanted too.
        settings: How to capture.

    Attributes:
        settings: The same, with the random generators that the warm-up met.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        stand_ins: StandIns,
        *,
        differentiate: bool,
        settings: Settings,
    ) -> None:
        self.settings = settings
        self._candidates, self._stand_ins = candidates, stand_ins
        self._differentiate = differentiate
        # What a warm-up finds out: leaves that are not of the callable's own making, and which
        # callables have several outputs with a gradient.
        self._outside: dict[int, torch.Tensor] | None = None
        self._several: dict[int, bool] = {}
        self._saves: dict[int, bool] = {}
        self._written: dict[int, list[torch.Tensor]] = {}
        self._preservation: Preservation | None = None
        self._repeats: dict[int, Repeats] = {}

    def warm_up(self, stream: object) -> None:
        """Calls each callable on ``stream``, backward included, and undoes what that changed.

        Raises:
            CaptureError: A callable that cannot be captured, or an unused input.
        """
        if not self.settings.warmup:
            return
        device = self._candidates[0].device
        buffers = [buffer for one in self._candidates for _, buffer in one.reached.buffers()]
        _synchronize(device)
        preservation = self._preservation = Preservation(device, buffers)
        lasting = Lasting()
        self._outside = {}
        written: dict[int, list[torch.Tensor]] = {}
        try:
            with select(DRIVER).using_stream(stream, device), steady_streams(device):
                for candidate in self._candidates:
                    preservation.written.clear()
                    repeats = self._repeats[id(candidate)] = Repeats()
                    dispatch = CaptureDispatch([preservation, lasting, repeats])
                    dispatch.start()
                    try:
                        with noted("warming up", candidate):
                            for _ in range(self.settings.warmup):
                                lasting.begin(candidate)
                                repeats.begin()
                                self._call(candidate, preservation.is_born)
                    finally:
                        dispatch.stop()
                    written[id(candidate)] = list(preservation.written.values())
        finally:
            torch.clear_autocast_cache()
            _synchronize(device)
            preservation.restore()
        # Aliases, which count writes together with the tensors; made in a dispatch mode, which is
        # below that counting, they would not.
        self._written = {key: [one.detach() for one in ones] for key, ones in written.items()}
        for generator in preservation.generators:
            if not serves(generator, device):
                raise drawn_elsewhere(
                    f"a generator of {generator.device}", device, self._candidates[0].subject
                )
        self.settings = replace(self.settings, generators=tuple(preservation.generators))

    def retains(self, candidate: Candidate) -> bool:
        """Whether backwards of ``candidate`` must leave what they use for others.

        One with several outputs may be asked for the gradient of some of them only, which is
        another backward.
        """
        return self.settings.retain or self._several.get(id(candidate), True)

    def forward(
        self, candidate: Candidate, inputs: Sequence[torch.Tensor], pool: Hashable
    ) -> Forward:
        """Captures the forward of ``candidate`` on ``inputs`` into ``pool``.

        Raises:
            CaptureError: As ``record_forward``; an unused input; or warm-up calls that differ.
        """
        outside = self._outside
        made = record_forward(
            candidate,
            inputs,
            stand_ins=self._stand_ins,
            is_born=lambda tensor: outside is not None and id(tensor) not in outside,
            used=self._preservation.used if self._preservation is not None else {},
            written=self._written.get(id(candidate), ()),
            saves=self._differentiate and self._saves.get(id(candidate), True),
            pool=pool,
            settings=self.settings,
        )
        try:
            self._refuse_unused(candidate, made.outputs, made.leaves, inputs)
            if (repeats := self._repeats.get(id(candidate))) is not None:
                refuse_changing(candidate, repeats)
        except BaseException:
            made.close()
            raise
        return made

    def _call(self, candidate: Candidate, is_born: Callable[[torch.Tensor], bool]) -> None:
        # Autocast's casts of parameters have a history, which is an earlier call's.
        torch.clear_autocast_cache()
        since = history_begins()
        outputs = Outputs(
            candidate.run(candidate.arguments.tensors),
            candidate.arguments.tensors,
            known_objects(candidate, self._stand_ins),
            device=candidate.device,
            subject=candidate.subject,
        )
        refuse_backward(candidate, self._stand_ins, candidate.arguments.tensors)
        differentiable = [outputs.computed[n] for n in outputs.differentiable]
        self._several[id(candidate)] = len(differentiable) > 1
        self._saves[id(candidate)] = bool(differentiable)
        if not self._differentiate or not differentiable:
            return
        leaves = leaves_of(
            differentiable,
            inputs=candidate.arguments.tensors,
            paths=candidate.arguments.paths,
            stand_ins=self._stand_ins,
            since=since,
            is_born=is_born,
            subject=candidate.subject,
        )
        self._refuse_unused(candidate, outputs, leaves, candidate.arguments.tensors)
        if not leaves:
            return
        outside = self._outside
        assert outside is not None
        outside.update((id(leaf.tensor), leaf.tensor) for leaf in leaves)
        seeds = [torch.zeros_like(tensor) for tensor in differentiable]
        gradients(differentiable, leaves, seeds, retain=False)

    def _refuse_unused(
        self,
        candidate: Candidate,
        outputs: Outputs,
        leaves: Sequence[Leaf],
        inputs: Sequence[torch.Tensor],
    ) -> None:
        if self._differentiate and outputs.differentiable and not self.settings.allow_unused:
            refuse_unused(
                leaves,
                inputs=inputs,
                paths=candidate.arguments.paths,
                parameters=candidate.reached.parameters() if candidate.is_module else (),
                subject=candidate.subject,
            )


@contextmanager
def session(
    candidates: Sequence[Candidate], *, differentiate: bool, settings: Settings
) -> Iterator[Session]:
    """While entered, the callables may be warmed up and captured; all else is as it was after it.

    Args:
        candidates: Of one device.
        differentiate: Capture with gradients, or as under ``torch.no_grad()``.
        settings: How to capture.
    """
    modules = {
        f"{number}:{path}": module
        for number, one in enumerate(candidates)
        for path, module in one.reached.modules.items()
    }
    parameters = [pair for one in candidates for pair in one.reached.parameters()]
    with (
        recording(),
        torch.inference_mode(False),
        torch.set_grad_enabled(differentiate),
        substituted(modules, parameters if differentiate else ()) as stand_ins,
    ):
        found = [one.reached for one in candidates]
        owners = {
            f"{number}:{name}": owner
            for number, one in enumerate(found)
            for name, owner in one.owners.items()
        }
        attributes = Attributes({**owners, **modules})
        names = Names([place for one in found for place in one.places])
        leaves = [
            (value, value.grad)
            for one in found
            for _, _, value in one.bindings
            if isinstance(value, torch.Tensor) and value.is_leaf
        ]
        optimizers = Bindings(lambda tensor: False)
        optimizers.start()
        try:
            yield Session(candidates, stand_ins, differentiate=differentiate, settings=settings)
        finally:
            optimizers.stop()
            optimizers.restore()
            attributes.restore()
            names.restore()
            for leaf, grad in leaves:
                if leaf.grad is not grad:
                    leaf.grad = grad


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
