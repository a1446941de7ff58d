"""The native calls of the hot path, by the cheapest binding that is installed.

The plain functions of cuda.bindings turn each handle and each result into an object, which costs a
fifth of a launch. From 13.5 on it has functions of plain integers beneath them, which raise where
the plain ones return a code. They are not yet public: where they are missing the plain ones serve.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .bindings import Calls

__all__ = ["Hot", "hot_calls"]


class Refused(Exception):
    """A code of the driver's where the plain functions would return it.

    Attributes:
        status: The code.
    """

    def __init__(self, status: Any) -> None:
        super().__init__(status)
        self.status = status


@dataclass(frozen=True, slots=True)
class Hot:
    """Calls that return something false, or a tuple that begins with the native result.

    Attributes:
        launch: ``launch(executable, stream)``.
        set_kernel: ``set_kernel(executable, node, parameters)``. In a thread without a context the
            driver ends the process here.
        capturing: ``capturing(stream)``: true if the stream is capturing. What keeps the driver
            from saying so (a thread without a context) it raises, with every binding.
        context: ``context()``: this thread's context as an integer, 0 if it has none.
        handle: What these calls take for a stream of that handle: the same for the same handle.
        native: What they take for an executable or a node.
        function: ``function(node)``: the handle of what a kernel node runs, 0 for any other node.
        kernel_parameters: ``(function, grid, block, address)``: what ``set_kernel`` takes for a
            kernel whose parameters are at ``address``.
        raised: The exceptions that they raise in place of a code, a tuple; ``status`` is the code.
    """

    launch: Callable[[Any, Any], Any]
    set_kernel: Callable[[Any, Any, Any], Any]
    capturing: Callable[[Any], Any]
    context: Callable[[], int]
    handle: Callable[[int], Any]
    native: Callable[[Any], Any]
    function: Callable[[Any], int]
    kernel_parameters: Callable[[Any, tuple[int, int], int, int], Any]
    raised: Any


def hot_calls(calls: Calls) -> Hot:
    """The cheapest there are."""
    if getattr(calls.driver, "__name__", "") == "cuda.bindings.driver":
        try:
            return _of_integers(importlib.import_module("cuda.bindings._v2.driver"))
        except (ImportError, AttributeError):
            return _plain(calls)
    return _plain(calls)


def _of_integers(beneath: Any) -> Hot:
    def kernel_parameters(function: Any, grid: tuple[int, int], block: int, address: int) -> Any:
        made = beneath.KernelNodeParams_v2()
        made.func = int(function)
        made.grid_dim_x, made.grid_dim_y, made.grid_dim_z = *grid, 1
        made.block_dim_x, made.block_dim_y, made.block_dim_z = block, 1, 1
        made.kernel_params = address
        return made

    read = beneath.graph_kernel_node_get_params_v2

    def function(node: Any) -> int:
        try:
            found = read(int(node))
        except beneath.DriverError:
            return 0
        return found.func or found.kern  # type: ignore[no-any-return]

    return Hot(
        launch=beneath.graph_launch,
        set_kernel=beneath.graph_exec_kernel_node_set_params_v2,
        capturing=beneath.stream_is_capturing,
        context=beneath.ctx_get_current,
        handle=int,
        native=int,
        function=function,
        kernel_parameters=kernel_parameters,
        raised=(beneath.DriverError,),
    )


def _plain(calls: Calls) -> Hot:
    status, current = calls.raw("cuStreamIsCapturing"), calls.raw("cuCtxGetCurrent")
    native, handles = calls.driver, dict[int, Any]()
    read = calls.raw("cuGraphKernelNodeGetParams")

    def capturing(stream: Any) -> Any:
        code, found = status(stream)
        if code:
            raise Refused(code)
        return found

    def handle(value: int) -> Any:
        found = handles.get(value)
        if found is None:
            if len(handles) >= 256:  # Most are of streams long gone.
                handles.clear()
            found = handles[value] = native.CUstream(value)
        return found

    def function(node: Any) -> int:
        code, found = read(node)
        return 0 if code else int(found.func) or int(found.kern)

    def kernel_parameters(function: Any, grid: tuple[int, int], block: int, address: int) -> Any:
        made = native.CUDA_KERNEL_NODE_PARAMS()
        made.func = function
        made.gridDimX, made.gridDimY, made.gridDimZ = *grid, 1
        made.blockDimX, made.blockDimY, made.blockDimZ = block, 1, 1
        made.sharedMemBytes = 0
        made.kernelParams = address
        return made

    return Hot(
        launch=calls.raw("cuGraphLaunch"),
        set_kernel=calls.raw("cuGraphExecKernelNodeSetParams"),
        capturing=capturing,
        context=lambda: int(current()[1] or 0),
        handle=handle,
        native=lambda value: value,
        function=function,
        kernel_parameters=kernel_parameters,
        raised=(Refused,),
    )
