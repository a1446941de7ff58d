"""The neutral work of the torch driver, for the suite that tests every driver."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import entry_points
from typing import Any, cast

import torch

from tensorplay_core import reclaim
from tensorplay_core.errors import CaptureInvalidated
from tensorplay_core.protocols import Device
from tensorplay_core.runtime import Runtime
from tensorplay_core.testing.workbench import Workbench

from .driver.conditional import Conditionals
from .resources.devices import index_of
from .resources.generators import keep_state

__all__ = ["TorchWorkbench"]


class TorchWorkbench:
    """Least work on torch tensors, in float32, on a CUDA device or on the CPU.

    On the CPU streams are the host driver's: torch has none, but what it does is recorded on
    whichever is current.
    """

    runtime: Runtime
    device: Device

    def __init__(self, runtime: Runtime, device: Device) -> None:
        self.runtime = runtime
        self.device = device
        self._device = cast("torch.device", device)
        self._storages: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self._host: Workbench | None = None
        if self._device.type == "cpu":
            driver = cast("Conditionals", runtime.driver)
            base = driver.bases("host")
            (point,) = entry_points(group="tensorplay_core.workbenches", name="host")
            self._host = point.load()(base, base.resolve_device(None))
        else:
            # The first capture would take this for good: it must not count as one test's leak.
            torch.cuda.init()
            keep_state(index_of(self._device))

    def buffer(self, values: Sequence[float]) -> torch.Tensor:
        """A float32 tensor."""
        return self._noted(torch.tensor(values, dtype=torch.float32, device=self._device))

    def flag(self, value: bool) -> torch.Tensor:
        """One Bool."""
        return self._noted(torch.tensor([value], dtype=torch.bool, device=self._device))

    def index(self, value: int) -> torch.Tensor:
        """One int32."""
        return self._noted(torch.tensor([value], dtype=torch.int32, device=self._device))

    def read(self, buffer: Any) -> list[float]:
        """The values, as floats."""
        if self._host is None and not reclaim.captures_live():
            # Copying to the host waits for the current stream, and work may be on any.
            torch.cuda.synchronize(self._device)
        with self._typed("reading a tensor"):
            return [float(value) for value in buffer.tolist()]

    def write(self, buffer: torch.Tensor, values: Sequence[float]) -> None:
        """Sets the values from the host."""
        self.synchronize()
        buffer.copy_(torch.tensor(values, dtype=torch.float64))

    def copy_(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """``destination[:] = source``."""
        destination.copy_(source)

    def add_(self, destination: torch.Tensor, source: torch.Tensor | float) -> None:
        """``destination += source``."""
        destination.add_(source)

    def double(self, source: torch.Tensor) -> torch.Tensor:
        """``source * 2`` in a fresh tensor."""
        return self._noted(source * 2)

    def less_(self, out: torch.Tensor, first: torch.Tensor, second: torch.Tensor | float) -> None:
        """``out[0] = first[0] < second[0]``."""
        torch.lt(first[:1], second[:1] if isinstance(second, torch.Tensor) else second, out=out)

    def stream(self) -> Any:
        """A new non-blocking stream."""
        if self._host is not None:
            return self._host.stream()
        return torch.cuda.Stream(self._device)

    def on(self, stream: Any) -> AbstractContextManager[None]:
        """Makes ``stream`` current in this thread while entered."""
        return self.runtime.using_stream(stream, self.device)

    def fork(self) -> Any:
        """A new stream after all work so far on the current one."""
        if self._host is not None:
            return self._host.fork()
        side = torch.cuda.Stream(self._device)
        side.wait_stream(torch.cuda.current_stream(self._device))
        return side

    def join(self, stream: Any) -> None:
        """Orders the current stream after ``stream``."""
        if self._host is not None:
            self._host.join(stream)
        else:
            torch.cuda.current_stream(self._device).wait_stream(stream)

    def fail(self) -> None:
        """Waits for the current stream."""
        if self._host is not None:
            self._host.fail()
            return
        with self._typed("waiting for a stream"):
            torch.cuda.current_stream(self._device).synchronize()

    def synchronize(self) -> None:
        """Waits for everything."""
        if self._host is not None:
            self._host.synchronize()
            return
        with self._typed("waiting for the device"):
            torch.cuda.synchronize(self._device)

    def live_bytes(self) -> int:
        """Bytes of live tensors, after a collection: on the CPU of those made here."""
        gc.collect()
        if self._host is None:
            return torch.cuda.memory_allocated(self._device)
        return sum(storage.nbytes() for storage in self._storages)

    def surroundings(self) -> tuple[object, ...]:
        """Current stream and device, random state, grad mode, autocast."""
        around: tuple[object, ...] = (
            self.runtime.current_stream(self.device),
            torch.get_rng_state().numpy().tobytes(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled(self._device.type),
            torch.is_autocast_cache_enabled(),
        )
        if self._device.type == "cuda":
            around += (
                torch.cuda.current_device(),
                torch.cuda.get_rng_state(self._device).numpy().tobytes(),
            )
        return around

    def _noted(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._host is not None:
            self._storages.add(tensor.untyped_storage())
        return tensor

    @contextmanager
    def _typed(self, doing: str) -> Iterator[None]:
        """What torch raises of an illegal call, as the suite expects it of any driver."""
        try:
            yield
        except RuntimeError as error:
            if not self._broke(error):
                raise
            raise CaptureInvalidated(
                doing=doing,
                subject=f"on {self.device}",
                met=str(error).partition("\n")[0],
                remedy="Do that outside of the capture.",
            ) from error

    def _broke(self, error: RuntimeError) -> bool:
        return self._host is None and "captur" in str(error)
