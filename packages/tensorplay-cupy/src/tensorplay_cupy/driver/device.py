"""Hooks of a device: the GPUs that CuPy and the CUDA driver see, streams, arrays, staging."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import cupy

from tensorplay_core.hookspecs import hookimpl
from tensorplay_core.protocols import Device as DeviceName
from tensorplay_core.protocols import Executable, StagePlan
from tensorplay_cupy import arrays, streams
from tensorplay_cupy.base import Base

from . import wheels

__all__ = ["Device"]


class Device:
    """The device noun. Devices, pools, templates and executables are the CUDA driver's own."""

    def __init__(self) -> None:
        self.base = Base()

    @hookimpl
    def tensorplay_describe(self) -> Mapping[str, str]:
        """CuPy, the CUDA it was built for, what linear algebra there is, and the driver beneath."""
        built = cupy.cuda.runtime.runtimeGetVersion()
        facts = {
            "cupy": ", ".join(wheels()) or f"{cupy.__version__} from source",
            "built for": f"CUDA {built // 1000}.{built % 1000 // 10}",
        }
        try:
            facts["linear algebra"] = f"nvmath-python {version('nvmath-python')}"
        except PackageNotFoundError:
            facts["linear algebra"] = "none: pip install 'tensorplay-cupy[linalg]'"
        return facts | {f"cuda: {k}": v for k, v in self.base.runtime.describe().items()}

    @hookimpl
    def tensorplay_resolve_device(self, device: object) -> DeviceName:
        """What a user calls a device; None is CuPy's current one."""
        if device is None:
            device = cupy.cuda.runtime.getDevice()
        return self.base.runtime.resolve_device(device)

    @hookimpl
    def tensorplay_current_stream(self, device: int) -> int:
        """CuPy's current stream of this thread."""
        return streams.current_stream(int(device))

    @hookimpl
    def tensorplay_side_stream(self, device: DeviceName, pool: object) -> object:
        """The stream of a pool's captures."""
        return self.base.runtime.side_stream(device, pool)

    @hookimpl
    def tensorplay_resolve_stream(self, stream: object, device: DeviceName) -> int:
        """Handle of a CuPy or torch stream, of anything with ``__cuda_stream__``, of an int."""
        return self.base.runtime.resolve_stream(stream, device)

    @hookimpl
    def tensorplay_using_stream(self, stream: object, device: int) -> AbstractContextManager[None]:
        """Makes a stream CuPy's current one in this thread while entered."""
        return self.using(stream, device)

    @hookimpl
    def tensorplay_array_like(self, array: Any) -> Any:
        """As ``arrays.like``."""
        return arrays.like(array)

    @hookimpl
    def tensorplay_array_copy(self, destination: Any, source: Any) -> None:
        """As ``arrays.copy_into``."""
        arrays.copy_into(destination, source)

    @hookimpl
    def tensorplay_array_overlap(self, first: Any, second: Any) -> bool:
        """As ``arrays.overlap``."""
        return arrays.overlap(first, second)

    @hookimpl
    def tensorplay_signature_check(self, static: Sequence[Any]) -> Callable[[Sequence[Any]], bool]:
        """As ``arrays.check_of``."""
        return arrays.check_of(static)

    @hookimpl
    def tensorplay_stage(
        self, executable: Executable, static_inputs: Sequence[Any], results: Sequence[Any]
    ) -> StagePlan:
        """Staged launches by the CUDA driver, their memory from CuPy's current allocator.

        Inputs are held until they are copied: CuPy hands out freed memory by the stream that it
        was allocated on, which need not be the one that copies.
        """
        static = [arrays.as_cupy(array) for array in static_inputs]
        yields = [arrays.as_cupy(array) for array in results]
        place = next((int(one.data.device_id) for one in (*static, *yields)), None)
        device = self.base.runtime.resolve_device(place)
        return self.base.driver.staged(
            executable,
            static,
            yields,
            check=arrays.check_of(static),
            pointer=arrays.pointer_of,
            allocate=arrays.like,
            using=lambda stream: self.using(stream, device),
        )

    def using(self, stream: object, device: DeviceName) -> AbstractContextManager[None]:
        """A stream, by whatever names it, CuPy's current one while entered."""
        return streams.using(self.cupy_stream(stream, device), int(device))  # type: ignore[call-overload]

    def cupy_stream(self, stream: object, device: DeviceName) -> Any:
        """A CuPy stream for anything that names a stream.

        Raises:
            ArgumentTypeError: It is no stream.
        """
        return streams.as_cupy_stream(stream, self.base.runtime.resolve_stream(stream, device))
