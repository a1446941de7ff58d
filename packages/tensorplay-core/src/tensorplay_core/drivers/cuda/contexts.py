"""Devices and their primary contexts, which are shared with every framework in the process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tensorplay_core import compiled
from tensorplay_core.errors import ArgumentError, ArgumentTypeError
from tensorplay_core.signature import a_type

from . import floors
from .bindings import Calls
from .hot import Hot, hot_calls

__all__ = ["Contexts", "CudaDevice", "obstacle"]


class CudaDevice(int):
    """The ordinal of one GPU. It is an ``int`` that prints as ``cuda:0``."""

    def __repr__(self) -> str:
        return f"cuda:{int(self)}"

    __str__ = __repr__


def obstacle() -> str | None:
    """Why the driver cannot work here, or None."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        return (
            f"cuda.bindings cannot be imported ({error}): "
            "pip install 'tensorplay-core[cuda13]' (or [cuda12])"
        )
    try:
        (failed,) = driver.cuInit(0)
    except RuntimeError as error:  # The bindings open libcuda at the first call.
        return f"no NVIDIA driver: {error}"
    if failed:
        return f"cuInit returned {failed.name}: see nvidia-smi and CUDA_VISIBLE_DEVICES"
    _, installed = driver.cuDriverGetVersion()
    if installed < floors.BASE:
        return (
            f"the NVIDIA driver serves CUDA {floors.spelled(installed)}, "
            f"{floors.spelled(floors.BASE)} or newer is needed"
        )
    _, count = driver.cuDeviceGetCount()
    return None if count else "no GPU is visible: see nvidia-smi and CUDA_VISIBLE_DEVICES"


class Contexts:
    """The GPUs of this process. A primary context is retained when its device is first used.

    Args:
        driver: The ``cuda.bindings.driver`` module; None imports it.

    Raises:
        DriverCallFailed: The NVIDIA driver cannot be initialised.
    """

    def __init__(self, driver: Any = None) -> None:
        self.native = driver or import_module("cuda.bindings.driver")
        # False of a driver that is only played.
        self.is_native = getattr(self.native, "__name__", "") == "cuda.bindings.driver"
        self.cu = Calls(self.native)
        self.cu.cuInit(0)
        self.version: int = self.cu.cuDriverGetVersion()
        self.device_count: int = self.cu.cuDeviceGetCount()
        mode = self.native.CUstreamCaptureMode
        self.relaxed_mode = mode.CU_STREAM_CAPTURE_MODE_RELAXED
        self._contexts: dict[int, Any] = {}
        self._contexts_lock = threading.Lock()

    @cached_property
    def hot(self) -> Hot:
        """The calls of the hot path."""
        return hot_calls(self.cu)

    def context(self, device: int) -> Any:
        """The primary context of a device."""
        found = self._contexts.get(device)
        if found is None:
            with self._contexts_lock:
                found = self._contexts.get(device)
                if found is None:
                    about = f"the primary context of cuda:{int(device)}"
                    found = self.cu.cuDevicePrimaryCtxRetain(
                        self.cu.cuDeviceGet(int(device), about=about), about=about
                    )
                    self._contexts[int(device)] = found
        return found

    @contextmanager
    def activated(self, device: int) -> Iterator[None]:
        """The device's context current in this thread while entered."""
        self.cu.cuCtxPushCurrent(self.context(device), about=f"cuda:{int(device)}")
        try:
            yield
        finally:
            self.cu.cuCtxPopCurrent(about=f"cuda:{int(device)}")

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """Calls of this thread that a capture would refuse are legal while entered.

        For what belongs to no stream (allocating, loading code), and so cannot be recorded anyway.
        """
        before = self.cu.cuThreadExchangeStreamCaptureMode(self.relaxed_mode)
        try:
            yield
        finally:
            self.cu.cuThreadExchangeStreamCaptureMode(before)

    def inside(self, device: int) -> Inside:
        """Both at once: ``relaxed``, and the device's context current."""
        return Inside(self, device)

    def current_device(self) -> CudaDevice:
        """The device whose context is current in this thread; the first one if none is."""
        if not int(self.cu.cuCtxGetCurrent()):
            return CudaDevice(0)
        return CudaDevice(int(self.cu.cuCtxGetDevice()))

    def find_device(self, device: object) -> CudaDevice:
        """What a user calls a device: None, an ordinal, ``"cuda:1"``, a torch or CuPy device.

        Raises:
            ArgumentTypeError: It is none of these.
            ArgumentError: There is no such GPU.
        """
        if device is None:
            return self.current_device()
        kind, ordinal = _named(device)
        if kind not in ("cuda", "gpu"):
            raise ArgumentError(
                doing="choosing",
                subject=f"device {device!r}",
                met=f"it is of type {kind!r}",
                remedy="Name a GPU: 'cuda', 'cuda:1', an ordinal, a torch or CuPy device.",
            )
        if ordinal is None:
            return self.current_device()
        if not 0 <= ordinal < self.device_count:
            raise ArgumentError(
                doing="choosing",
                subject=f"device {device!r}",
                met=f"this process sees {self.device_count} GPU(s)",
                remedy="Name one of them, counted from 0, or look at CUDA_VISIBLE_DEVICES.",
            )
        return CudaDevice(ordinal)

    def describe(self) -> dict[str, str]:
        """Versions, devices, and what each floor allows here."""
        facts = {"CUDA driver": floors.spelled(self.version)}
        try:
            facts["cuda-bindings"] = version("cuda-bindings")
        except PackageNotFoundError:  # Bindings from a source tree carry no metadata.
            facts["cuda-bindings"] = "unknown"
        facts["launch in C"] = compiled.summary()
        attribute = self.native.CUdevice_attribute
        for ordinal in range(self.device_count):
            device = self.cu.cuDeviceGet(ordinal)
            # The bindings give the whole buffer.
            name = self.cu.cuDeviceGetName(256, device).partition(b"\0")[0].decode()
            major, minor = (
                self.cu.cuDeviceGetAttribute(which, device)
                for which in (
                    attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                    attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                )
            )
            memory = self.cu.cuDeviceTotalMem(device) / 2**30
            facts[f"cuda:{ordinal}"] = f"{name}, sm_{major}{minor}, {memory:.1f} GiB"
        for what, floor, otherwise in (
            ("if and while nodes", floors.CONDITIONALS, "refused"),
            ("switch nodes", floors.SWITCH, "refused"),
            ("if/else", floors.ELSE, "two if nodes, sampled before either body"),
            ("empty bodies", floors.EMPTY_BODIES, "filled with an empty node"),
            ("bodies of foreign conditionals", floors.NODE_PARAMETERS, "unknown to topology"),
            ("profilers' numbers of nodes", floors.TOOLS_IDS, "not told"),
        ):
            there = self.version >= floor
            facts[what] = "native" if there else f"{otherwise} below {floors.spelled(floor)}"
        return facts


class Inside:
    """As ``relaxed`` and ``activated`` one in the other, for what is done often.

    A context that is current already is left as it is.
    """

    __slots__ = ("_before", "_contexts", "_device", "_pushed")

    def __init__(self, contexts: Contexts, device: int) -> None:
        self._contexts, self._device = contexts, device
        self._pushed = False

    def __enter__(self) -> None:
        contexts, device = self._contexts, self._device
        own, relaxed = contexts.context(device), contexts.relaxed_mode
        self._before = contexts.cu.cuThreadExchangeStreamCaptureMode(relaxed)
        if contexts.hot.context() == int(own):
            return
        try:
            contexts.cu.cuCtxPushCurrent(own, about=f"cuda:{int(device)}")
        except BaseException:
            contexts.cu.cuThreadExchangeStreamCaptureMode(self._before)
            raise
        self._pushed = True

    def __exit__(self, *error: object) -> None:
        cu = self._contexts.cu
        try:
            if self._pushed:
                cu.cuCtxPopCurrent(about=f"cuda:{int(self._device)}")
        finally:
            cu.cuThreadExchangeStreamCaptureMode(self._before)


def _named(device: object) -> tuple[str, int | None]:
    if isinstance(device, int) and not isinstance(device, bool):
        return "cuda", int(device)
    if isinstance(device, str):
        kind, colon, ordinal = device.partition(":")
        if not colon:
            return kind, None
        if ordinal.isdecimal():
            return kind, int(ordinal)
    family, index = getattr(device, "type", None), getattr(device, "index", None)
    if isinstance(family, str) and (index is None or isinstance(index, int)):
        return family, index
    ordinal_of_cupy = getattr(device, "id", None)
    if isinstance(ordinal_of_cupy, int):
        return "cuda", ordinal_of_cupy
    raise ArgumentTypeError(
        doing="choosing",
        subject=f"device {device!r}",
        met=f"it is {a_type(device)}",
        remedy="Name a GPU: 'cuda', 'cuda:1', an ordinal, a torch or CuPy device.",
    )
