"""Hooks of a device: what it is, its streams, its arrays, how inputs reach a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from tensorplay_core.hookspecs import hookimpl

from .arrays import DeviceArray, overlap, view
from .contexts import CudaDevice
from .streams import Stream
from .transfers import Transfers

if TYPE_CHECKING:
    from .pool import CudaPool

__all__ = ["Device"]

_OWN_SIGNATURE = attrgetter("signature")


class Device(Transfers):
    """The GPUs of this process behind the hooks."""

    def __init__(self, driver: Any = None) -> None:
        super().__init__(driver)
        self._side_streams: dict[int, Stream] = {}

    @hookimpl
    def tensorplay_describe(self) -> Mapping[str, str]:
        """Versions, devices, and what each floor allows here."""
        return self.describe()

    @hookimpl
    def tensorplay_resolve_device(self, device: object) -> CudaDevice:
        """The ordinal of what a user calls a device."""
        return self.find_device(device)

    @hookimpl
    def tensorplay_current_stream(self, device: CudaDevice) -> int:
        """Handle of this thread's current stream: 0 unless one was made current."""
        return self.handle(None, device)

    @hookimpl
    def tensorplay_side_stream(self, device: CudaDevice, pool: CudaPool | None) -> Stream:
        """The stream of a pool's captures; without a pool, of the device's."""
        if pool is not None:
            if pool.stream is None:
                pool.stream = Stream(self, device)
            return pool.stream
        if device not in self._side_streams:
            self._side_streams[device] = Stream(self, device)
        return self._side_streams[device]

    @hookimpl
    def tensorplay_resolve_stream(self, stream: object, device: CudaDevice) -> int:
        """Handle of a stream of this driver, torch, CuPy, anything with ``__cuda_stream__``."""
        return self.handle(stream, device)

    @hookimpl
    def tensorplay_using_stream(
        self, stream: object, device: CudaDevice
    ) -> AbstractContextManager[None]:
        """Makes a stream current in this thread while entered."""
        return self.using(stream, device)

    @hookimpl
    def tensorplay_array_like(self, array: Any) -> DeviceArray:
        """A new row-major array of the same shape and element type."""
        like = view(array)
        return self.empty(like.shape, like.typestr, self.device_of(like))

    @hookimpl
    def tensorplay_array_copy(self, destination: Any, source: Any) -> None:
        """A copy between dense arrays of one shape and element type."""
        self.copy(destination, source)

    @hookimpl
    def tensorplay_array_overlap(self, first: Any, second: Any) -> bool:
        """True if the two arrays' addresses overlap."""
        return overlap(view(first), view(second))

    @hookimpl
    def tensorplay_signature_check(self, static: Sequence[Any]) -> Callable[[Sequence[Any]], bool]:
        """A check of count, shape, element type, strides and device."""
        return signature_check(static)


def signature_check(static: Sequence[Any]) -> Callable[[Sequence[Any]], bool]:
    """See the hook. Arrays that do not tell their device, or are no arrays, never pass."""
    expected = [_signature(array) for array in static]
    if all(type(array) is DeviceArray for array in static):

        def check_own(inputs: Sequence[Any]) -> bool:
            try:
                return list(map(_OWN_SIGNATURE, inputs)) == expected
            except AttributeError:
                return False

        return check_own

    def check(inputs: Sequence[Any]) -> bool:
        try:
            return [_signature(array) for array in inputs] == expected
        except (ValueError, AttributeError, KeyError):  # No array in device memory.
            return False

    return check


def _signature(array: Any) -> tuple[object, ...]:
    if type(array) is DeviceArray:
        return array.signature
    facts = view(array)
    strides = None if facts.row_major else facts.strides
    # An array that keeps its device to itself equals no other, not even itself.
    device = facts.device if facts.device is not None else object()
    return facts.shape, facts.typestr, device, *(() if strides is None else (strides,))
