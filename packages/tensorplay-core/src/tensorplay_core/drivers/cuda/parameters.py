"""What kernel nodes were captured with: read as bytes, and rewritten without another capture."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tensorplay_core.errors import ArgumentError

from . import topology
from .modules import layout

if TYPE_CHECKING:
    from .executable import CudaExecutable
    from .work import Work

__all__ = ["LaunchParameters", "parameters_of"]


class LaunchParameters:
    """The parameters of one kernel node.

    Args:
        work: The driver.
        node: The native node, of a template's graph or of a body in it.

    Attributes:
        data: Its parameters, one after the other, each filled up to a multiple of eight bytes: so
            numbers inside them stay aligned. If the launch packed them, as it packed them.
        name: The kernel's name.
        readable: False if it takes parameters that ``data`` does not show.
    """

    def __init__(self, work: Work, node: Any) -> None:
        self._work, self._node = work, node
        native = work.cu.cuGraphKernelNodeGetParams(node)
        if int(native.func):
            sizes = layout(work, "cuFuncGetParamInfo", native.func)
        else:
            sizes = layout(work, "cuKernelGetParamInfo", native.kern)
        self.name = topology.kernel_name(work, native)
        self._sizes = [size for _, size in sizes] if native.kernelParams else []
        self._packed = not native.kernelParams and bool(native.extra)
        if self._packed:
            self.data = topology.packed(int(native.extra))
        else:
            self.data = _read(int(native.kernelParams), self._sizes) if self._sizes else b""
        self.readable = bool(self.data) or not sizes

    def write(self, executable: CudaExecutable, data: bytes) -> None:
        """Launches from now on take these parameters; those under way keep theirs.

        Staged launches of the executable take them too, and so does what is made of its template
        later.

        Args:
            executable: Made from the template that the node is of.
            data: As many bytes as were captured.

        Raises:
            ArgumentError: They are not as many, or the launch packed them.
            GraphStateError: The executable is closed.
            DriverCallFailed: The driver does not change this node in place.
        """
        if len(data) != len(self.data):
            raise ArgumentError(
                doing="rewriting the parameters of",
                subject=self.name,
                met=f"they are {len(self.data)} bytes, got {len(data)}",
                remedy="Change bytes of what was captured; their number is the kernel's.",
            )
        if self._packed:
            raise ArgumentError(
                doing="rewriting the parameters of",
                subject=self.name,
                met="the launch packed them, and the driver keeps no place for others",
                remedy="Capture again.",
            )
        values = ctypes.create_string_buffer(data, max(len(data), 1))
        start = ctypes.addressof(values)
        addresses = [start + offset for offset in _offsets(self._sizes)]
        array = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
        work, about = self._work, executable.subject
        native = work.cu.cuGraphKernelNodeGetParams(self._node)
        native.kernelParams = ctypes.addressof(array)
        with executable.turn, work.inside(executable.device):
            executable.check_open()
            work.cu.cuGraphExecKernelNodeSetParams(
                executable.native, self._node, native, about=about
            )
            for staged in executable.staged():
                staged.rewrite(self._node, native)
            work.cu.cuGraphKernelNodeSetParams(self._node, native, about=about)
        self.data = data


def _read(address: int, sizes: list[int]) -> bytes:
    addresses = (ctypes.c_void_p * len(sizes)).from_address(address)
    return b"".join(
        (ctypes.string_at(one, size) if one else bytes(size)) + bytes(-size % 8)
        for one, size in zip(addresses, sizes, strict=True)
    )


def _offsets(sizes: list[int]) -> Iterator[int]:
    offset = 0
    for size in sizes:
        yield offset
        offset += size + -size % 8


def parameters_of(work: Work, node: Any) -> LaunchParameters | None:
    """The parameters of a kernel node; None for a node of another kind."""
    return LaunchParameters(work, node) if topology.kind_of(work, node) == "kernel" else None
