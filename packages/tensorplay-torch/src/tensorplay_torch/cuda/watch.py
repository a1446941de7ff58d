"""What is seen of a capture on CUDA: operands, optimizer state, random numbers.

With ``track_operands``, ``check_input_liveness`` or annotations a dispatch mode shows every
operation. Without, only optimizers are looked at, and inside conditional bodies whether random
numbers are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tensorplay_core.errors import StaleGraph, TensorplayError
from tensorplay_core.protocols import Capture, CaptureOptions
from tensorplay_torch.resources.generators import Generators
from tensorplay_torch.tracking.annotated import BackwardScopes
from tensorplay_torch.tracking.culprit import name_of
from tensorplay_torch.tracking.dispatch import CaptureDispatch, Listener
from tensorplay_torch.tracking.inference import Inference
from tensorplay_torch.tracking.liveness import listed
from tensorplay_torch.tracking.operands import DeviceListener
from tensorplay_torch.tracking.refusals import swallowed
from tensorplay_torch.tracking.state import Bindings

from .broken import of_operation
from .drawing import Drawing
from .foreign import ForeignWork, tensors_at
from .seen import Seen

if TYPE_CHECKING:
    import torch

__all__ = ["Watch"]


class Watch:
    """See the module.

    Args:
        device: Where the capture runs.
        options: What to look at.
        generators: Those that the graph may draw from; generators that are seen are added.

    Attributes:
        checks_liveness: Inputs are watched, not kept.
    """

    def __init__(
        self, device: torch.device, options: CaptureOptions, generators: Generators
    ) -> None:
        self.checks_liveness = options.check_input_liveness
        self._random = Drawing(generators)
        self._generators = generators
        self._listener: DeviceListener | None = None
        if options.track_operands or options.check_input_liveness:
            self._listener = DeviceListener(device.type, options)
            self._bindings = self._listener.bindings
        else:
            self._bindings = Bindings(lambda tensor: False)
        self._device = device
        self._foreign: ForeignWork | None = None
        self._scopes = None if options.timeline is None else BackwardScopes(options.timeline)
        self._started: list[CaptureDispatch] = []
        self._inference: Inference | None = None
        self._refusal: TensorplayError | None = None

    @property
    def drew(self) -> bool | None:
        """Whether captured work draws random numbers; None if not all of it was seen."""
        if self._listener is None or (self._random.unsure and not self._random.drew):
            return None
        if self._foreign:
            return None
        return self._random.drew

    @property
    def keeps(self) -> bool:
        """True if it may keep anything that the captured work uses."""
        return self._listener is not None or bool(self._random.kept)

    def start(self, foreign: Callable[[], ForeignWork]) -> None:
        """Begins to look, in the thread that captures.

        Args:
            foreign: Makes what sees the nodes that are no operation's.
        """
        self._bindings.start()
        self._inference = Inference()
        looking: list[Listener] = [] if self._scopes is None else [self._scopes]
        if self._listener is not None:
            self._foreign = foreign()
            looking.append(Seen(self._listener, self._foreign, self._random))
        elif looking:
            looking.append(self._random)
        if looking:
            self._on(CaptureDispatch(looking, explain=of_operation))

    def follow(self, capture: Capture) -> None:
        """The driver beneath adopted the capture, which may have bodies from now on."""
        if self._foreign is not None:
            self._foreign.follow(capture)

    def stop(self) -> None:
        """Stops. Idempotent.

        Raises:
            CaptureError: Dispatch modes, or inference mode, were not nested with the capture.
        """
        self._bindings.stop()
        inference, self._inference = self._inference, None
        looks = bool(self._started)
        while self._started:
            # It stays here until it is off: to stop it twice is harmless.
            self._ended(self._started[-1])
            self._started.pop()
        if inference is not None and (crossed := inference.crossing(looks=looks)) is not None:
            raise crossed
        # Every operation was looked at, so no generator was missed.
        self._generators.complete |= self._listener is not None

    def read(self) -> None:
        """Reads what work that was no operation was given. Right before the capture ends."""
        if self._foreign is not None:
            self._foreign.read()

    def claim(self, owned: Callable[[], Container[int]]) -> None:
        """The graph uses what work that was no operation uses. Right after the capture ended.

        Args:
            owned: Makes the addresses of memory that the graph's pool holds.
        """
        if self._listener is None:
            return
        operands = self._listener.operands
        if self._foreign:
            own = owned()
            found = [
                tensor
                for tensor in tensors_at(self._foreign.words, self._device)
                if tensor.untyped_storage().data_ptr() not in own
            ]
            operands.take_in(found, "a kernel that was launched past torch's operations")
            # Nobody saw that compiled regions bore them: what they saved counts on their versions.
            self._listener.versions.forget(own)
        # Among it is what compiled regions allocate: no operation was seen to bear that.
        operands.disown(owned)

    @contextmanager
    def unforeign(self) -> Iterator[None]:
        """Nodes that come while entered are this package's own."""
        if self._foreign is None:
            yield
            return
        self._foreign.look()
        yield
        self._foreign.pass_over()

    def accept(self) -> None:
        """The capture is good, if nothing in it escaped the graph.

        Raises:
            CaptureInvalidated: An operation was refused, and the error swallowed.
            OperationRefused: Optimizer state was created or replaced in it.
        """
        if self._refusal is not None:
            raise swallowed(self._refusal) from self._refusal
        self._bindings.check()
        self._bindings.forget()
        if self._listener is not None:
            self._listener.versions.restore()
            self._listener.operands.seal()

    def undo(self) -> None:
        """The capture failed: binds again what it bound to its own memory."""
        self._bindings.restore()
        self.close()

    def close(self) -> None:
        """Lets go of the operands."""
        self._bindings.forget()
        self._random.kept.clear()
        if self._listener is not None:
            self._listener.versions.restore()
            self._listener.operands.seal()
            self._listener.operands.retained.clear()

    @contextmanager
    def body(self) -> Iterator[None]:
        """Refuses random numbers while entered."""
        self._random.bodies += 1
        alone = None
        if not self._started:
            alone = CaptureDispatch([self._random], explain=of_operation)
            self._on(alone)
        try:
            yield
        finally:
            if self._foreign is not None:
                self._foreign.look()
            self._random.bodies -= 1
            if alone is not None and alone in self._started:
                try:
                    self._ended(alone)
                except Exception:
                    self._started.remove(alone)
                    raise
                self._started.remove(alone)

    def last_seen(self) -> str:
        """The operation that ran last, as a clause for an error."""
        last = self._random.last
        return f"; the last operation seen was {name_of(last)}" if last is not None else ""

    def check_alive(self, subject: str) -> None:
        """Raises StaleGraph if an input that is watched has died."""
        dead = self._listener.operands.dead() if self._listener is not None else ()
        if dead:
            raise StaleGraph(
                doing="replaying",
                subject=subject,
                met=f"{len(dead)} of its inputs died since the capture: {listed(dead)}",
                remedy="Keep the inputs alive, or capture without check_input_liveness, which "
                "makes the graph keep them.",
            )

    def _ended(self, dispatch: CaptureDispatch) -> None:
        self._refusal = self._refusal or dispatch.refusal
        dispatch.stop()

    def _on(self, dispatch: CaptureDispatch) -> None:
        self._started.append(dispatch)
        dispatch.start()
