"""Device code: modules, their functions, and the arguments functions are launched with."""

from __future__ import annotations

import ctypes
import struct
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tensorplay_core import reclaim
from tensorplay_core.errors import ArgumentError, ArgumentTypeError, TensorplayError
from tensorplay_core.signature import a_type, named

from .arrays import view

if TYPE_CHECKING:
    from .contexts import Contexts, CudaDevice

__all__ = ["Arguments", "Function", "Module", "extents"]


class Module:
    """Loaded device code. It is unloaded with its last reference; graphs keep what they launch.

    Args:
        contexts: Where to load it.
        device: The GPU to load it for.
        image: PTX text, or a cubin or fatbin.
    """

    def __init__(self, contexts: Contexts, device: CudaDevice, image: bytes) -> None:
        self.device = device
        self._contexts = contexts
        self._functions: weakref.WeakValueDictionary[str, Function] = weakref.WeakValueDictionary()
        # A PTX image ends with a zero byte; a binary one says itself how long it is.
        terminated = image if image.startswith((b"\x7fELF", b"\x50\xed")) else image + b"\0"
        with contexts.inside(device):
            native = contexts.cu.cuModuleLoadData(terminated, about=f"a module on {device}")
        self.native = native
        end = weakref.finalize(self, _unload, contexts, device, native)
        end.atexit = False

    def function(self, name: str) -> Function:
        """A kernel by its (mangled) name, loaded at once and not at its first launch.

        Raises:
            DriverCallFailed: The module has no such kernel.
        """
        found = self._functions.get(name)
        if found is None:
            self._functions[name] = found = Function(self, name)
        return found


def _unload(contexts: Contexts, device: CudaDevice, native: Any) -> None:
    def unload() -> None:
        with contexts.inside(device):
            contexts.cu.cuModuleUnload(native, about=f"a module on {device}")

    reclaim.dispose(unload)


class Function:
    """One kernel and the layout of its parameters.

    Attributes:
        native: The native handle.
        name: Its name in the module.
        module: The module, which the function keeps loaded.
        parameters: ``(offset, size)`` in bytes of each parameter.
    """

    def __init__(self, module: Module, name: str) -> None:
        contexts = module._contexts
        about = f"kernel {name!r}"
        with contexts.inside(module.device):
            self.native = contexts.cu.cuModuleGetFunction(module.native, name.encode(), about=about)
            # Lazy loading would do this at the first launch, which may be inside a capture.
            contexts.cu.cuFuncLoad(self.native, about=about)
            self.parameters = layout(contexts, "cuFuncGetParamInfo", self.native)
        self.module, self.name, self.device = module, name, module.device

    def __repr__(self) -> str:
        return f"<kernel {self.name} on {self.device}>"


def layout(contexts: Contexts, call: str, kernel: Any) -> tuple[tuple[int, int], ...]:
    """``(offset, size)`` of each parameter of a function or kernel handle."""
    found: list[tuple[int, int]] = []
    ask = contexts.cu.raw(call)
    while True:
        failed, offset, size = ask(kernel, len(found))
        if failed:  # The driver counts parameters only by refusing the one after the last.
            return tuple(found)
        found.append((int(offset), int(size)))


class Arguments:
    """Arguments packed as a launch wants them: an array of addresses of values.

    Args:
        function: The kernel.
        values: One a parameter: an array (its address is passed), an int, a float, None (a null
            pointer), or bytes for anything else.

    Attributes:
        address: Address of the array of addresses, valid as long as this object.

    Raises:
        ArgumentError: The count differs, or a value does not fit its parameter.
        ArgumentTypeError: A value is of no such type.
    """

    def __init__(self, function: Function, values: Sequence[Any]) -> None:
        sizes = function.parameters
        if len(values) != len(sizes):
            raise ArgumentError(
                doing="launching",
                subject=repr(function),
                met=f"it takes {len(sizes)} arguments, got {len(values)}",
                remedy="Pass one value a parameter.",
            )
        end = max((offset + size for offset, size in sizes), default=0)
        self._values = ctypes.create_string_buffer(max(end, 1))
        start = ctypes.addressof(self._values)
        addresses = []
        for place, (value, (offset, size)) in enumerate(zip(values, sizes, strict=True)):
            packed = _packed(function, place, value, size)
            ctypes.memmove(start + offset, packed, size)
            addresses.append(start + offset)
        self._addresses = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
        self.address = ctypes.addressof(self._addresses)


_FLOATS = {2: "<e", 4: "<f", 8: "<d"}


def _packed(function: Function, place: int, value: Any, size: int) -> bytes:
    try:
        if value is None:
            return bytes(size)
        if isinstance(value, bytes | bytearray):
            packed = bytes(value)
        elif isinstance(value, int):
            packed = int(value).to_bytes(size, "little", signed=value < 0)
        elif isinstance(value, float):
            packed = struct.pack(_FLOATS[size], value)
        else:
            packed = view(value).pointer.to_bytes(8, "little")
    except (KeyError, OverflowError, struct.error) as error:
        raise _misfit(function, place, value, size) from error
    except TensorplayError as error:
        raise ArgumentTypeError(
            doing="launching",
            subject=repr(function),
            met=f"argument {place} is {a_type(value)}",
            remedy="Pass an array, an int, a float, None, or bytes.",
        ) from error
    if len(packed) != size:
        raise _misfit(function, place, value, size)
    return packed


def _misfit(function: Function, place: int, value: object, size: int) -> ArgumentError:
    return ArgumentError(
        doing="launching",
        subject=repr(function),
        met=f"argument {place} is {named(value)}, the parameter has {size} bytes",
        remedy="Pass a value that fits, or bytes of exactly that size.",
    )


def extents(value: int | Iterable[int]) -> tuple[int, int, int]:
    """A grid or block as three extents, missing ones 1."""
    given = (value,) if isinstance(value, int) else tuple(value)
    x, y, z = (*given, 1, 1, 1)[:3]
    return x, y, z
