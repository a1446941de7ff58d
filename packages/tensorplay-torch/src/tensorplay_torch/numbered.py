"""Numbers that captured work was given by value: seen while it is captured, changed in place later.

A learning rate, for one. On the CPU such a number stands among the arguments of a recorded
operation, on CUDA in the parameters of a kernel node. Either way a node shows them as ``data``, a
string of bytes in which a number stands as a double (on CUDA also as a float), and takes another
string of as many bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch

from tensorplay_core import CUDAGraph

from ._private import required
from .cpu.bodies import CpuBody
from .cpu.capture import CpuCapture
from .cpu.program import work_of
from .resources.bases import cuda_driver
from .tracking.operands import Operands
from .tracking.operations import Operation

__all__ = ["NumberedNode", "NumberedWork", "numbered"]

Work = Callable[[], object]
FEW = 64
"""A tensor of more elements is data; a number, or a row of them, becomes a smaller one."""


class NumberedNode(Protocol):
    """One node of a captured graph.

    Attributes:
        name: The operation or kernel.
        data: What it was captured with, or was given since.
        constants: What else it was captured with that may come from Python numbers, and that cannot
            be changed in place: integers, and the bytes of tensors that were made from numbers.
        readable: False if it takes numbers that neither shows.
    """

    name: str
    data: bytes
    constants: bytes
    readable: bool

    def rewrite(self, graph: CUDAGraph, data: bytes) -> None:
        """Launches of ``graph``, which it is of, take ``data`` from now on.

        Raises:
            DriverCallFailed: The driver does not change this node in place.
        """
        ...


class NumberedWork:
    """A recorded operation with the numbers among its arguments.

    Args:
        name: Of the operation.
        work: What a replay calls.
        arguments: What the operation was given, where ``work`` does not show it.
        remake: Makes the call anew from other arguments of that form.
        constants: See ``NumberedNode``.
    """

    readable = True

    def __init__(
        self,
        name: str,
        work: Work,
        arguments: tuple[Sequence[Any], Mapping[str, Any]],
        remake: Callable[..., Work],
        constants: bytes = b"",
    ) -> None:
        if isinstance(work, partial):
            arguments, remake = (work.args, work.keywords), _again(work)
        self.name, self.constants = name, constants
        self._work, self._arguments, self._remake = work, arguments, remake
        numbers = list(_numbers(arguments))
        self.data = struct.pack(f"<{len(numbers)}d", *numbers)

    def __call__(self) -> object:
        """What a replay runs."""
        return self._work()

    def rewrite(self, graph: CUDAGraph, data: bytes) -> None:
        """See ``NumberedNode``. The graph may be replayed by another thread meanwhile."""
        values = iter(struct.unpack(f"<{len(data) // 8}d", data))
        args, kwargs = _replaced(self._arguments, values)
        self._work = self._remake(args, kwargs)
        self.data = data


def _again(work: partial[object]) -> Callable[..., Work]:
    return lambda args, kwargs: partial(work.func, *args, **kwargs)


class NumberedKernel:
    """A kernel node, or a node of another kind, which takes no numbers.

    Args:
        parameters: As core's CUDA driver reads and rewrites them; None for another kind.
    """

    constants = b""

    def __init__(self, parameters: Any) -> None:
        self._parameters = parameters
        self.name: str = parameters.name if parameters is not None else ""
        self.data: bytes = parameters.data if parameters is not None else b""
        self.readable: bool = parameters is None or parameters.readable

    def rewrite(self, graph: CUDAGraph, data: bytes) -> None:
        """See ``NumberedNode``."""
        executable: Any = graph._ready("writing parameters of")
        self._parameters.write(executable.inner, data)
        self.data = data


def _noting(found: list[NumberedNode], operands: Operands) -> Callable[..., Work]:
    """What a recorder calls with each node: notes it in ``found``."""

    def note(operation: Operation, work: Work, args: Any, kwargs: Any, results: Any) -> Work:
        remake = partial(work_of, operation, results=results)
        constants = b"".join(_constants((args, kwargs), operands))
        node = NumberedWork(operation.name, work, (args, kwargs), remake, constants)
        found.append(node)
        return node if node.data else work

    return note


def _constants(value: Any, operands: Operands) -> Iterator[bytes]:
    """Integers among arguments, and the bytes of tensors that hold Python numbers."""
    if isinstance(value, int | complex):
        yield repr(value).encode()
    elif isinstance(value, torch.Tensor):
        if value.numel() <= FEW and (not operands.is_born(value) or operands.is_kept(value)):
            # Modes of the capture refuse to look at values.
            no_dispatch = required("disable_torch_dispatch", "looking at a captured number")
            no_function = required("disable_torch_function", "looking at a captured number")
            with no_dispatch(), no_function():
                yield repr(value.detach().tolist()).encode()
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _constants(one, operands)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _constants(one, operands)


@contextmanager
def numbered(graph: CUDAGraph) -> Iterator[list[NumberedNode]]:
    """Yields a list that gets the nodes captured into ``graph`` inside the block, in order.

    Nodes of conditional bodies that are opened inside it are left out on CUDA.

    Args:
        graph: It captures; the block is entered inside the body, if one is open.
    """
    capture: Any = graph._innermost()
    found: list[NumberedNode] = []
    if isinstance(capture, CpuCapture | CpuBody):
        recorder = capture.root.recorder
        before, recorder._numbered = recorder._numbered, _noting(found, recorder.operands)
        try:
            yield found
        finally:
            recorder._numbered = before
        return
    driver: Any = cuda_driver(capture.root.base)
    nodes: Callable[[Any], list[Any]] = driver.cu.nodes
    known = {int(node) for node in nodes(capture.inner.graph)}
    yield found
    found.extend(
        NumberedKernel(driver.launch_parameters(node))
        for node in nodes(capture.inner.graph)
        if int(node) not in known
    )


def _numbers(value: Any) -> Iterator[float]:
    if type(value) is float:
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _numbers(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _numbers(one)


def _replaced(value: Any, numbers: Iterator[float]) -> Any:
    if type(value) is float:
        return next(numbers)
    if isinstance(value, list | tuple):
        return type(value)([_replaced(one, numbers) for one in value])
    if isinstance(value, dict):
        return {key: _replaced(one, numbers) for key, one in value.items()}
    return value
