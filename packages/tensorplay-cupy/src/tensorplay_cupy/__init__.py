"""CUDA graphs, memory pools and conditionals for CuPy: the public door of ``tensorplay-cupy``.

The whole graph API of ``tensorplay_core`` bound to CuPy, and ``graphed``. What CuPy itself refuses
inside a capture is in ``tensorplay_cupy.linalg`` and ``tensorplay_cupy.random``. Nothing imports
CuPy before it is used. CuPy work is not rehearsed on a CPU: without a GPU nothing is captured.
"""

import importlib
import types

from tensorplay_core import (
    AnnotatedNode,
    ArgumentError,
    ArgumentTypeError,
    Body,
    CaptureError,
    CaptureInvalidated,
    ConditionalError,
    DriverCallFailed,
    DriverError,
    DriverUnavailable,
    EmptyCapture,
    GraphStateError,
    Loop,
    LoopLimitExceeded,
    Node,
    OperationRefused,
    PoolError,
    PoolExhausted,
    PoolMismatch,
    PoolStatistics,
    PredicateError,
    ReplayError,
    SignatureMismatch,
    StaleGraph,
    TensorplayError,
    Topology,
    UnjoinedWork,
    UnknownDriver,
    UnsupportedByDriver,
    annotate,
    annotations,
    clear_annotations,
    close_all,
    export_dot,
)

from .graphed import GraphedFunction, graphed
from .graphs import (
    CUDAGraph,
    cond,
    graph,
    graph_pool_handle,
    host_callback,
    is_current_stream_capturing,
    while_loop,
)

__version__ = "0.1.0"

__all__ = [
    # graph
    "CUDAGraph",
    "graph",
    "graphed",
    "GraphedFunction",
    "is_current_stream_capturing",
    "host_callback",
    "export_dot",
    "close_all",
    "Topology",
    "Node",
    # annotations
    "annotate",
    "annotations",
    "clear_annotations",
    "AnnotatedNode",
    # pool
    "graph_pool_handle",
    "PoolStatistics",
    # conditional
    "cond",
    "while_loop",
    "Body",
    "Loop",
    # errors
    "ArgumentError",
    "ArgumentTypeError",
    "CaptureError",
    "CaptureInvalidated",
    "ConditionalError",
    "DriverCallFailed",
    "DriverError",
    "DriverUnavailable",
    "EmptyCapture",
    "GraphStateError",
    "LoopLimitExceeded",
    "OperationRefused",
    "PoolError",
    "PoolExhausted",
    "PoolMismatch",
    "PredicateError",
    "ReplayError",
    "SignatureMismatch",
    "StaleGraph",
    "TensorplayError",
    "UnjoinedWork",
    "UnknownDriver",
    "UnsupportedByDriver",
    # about
    "__version__",
]


def __getattr__(name: str) -> types.ModuleType:
    """``tensorplay_cupy.linalg`` and ``.random``, imported when they are first asked for."""
    if name in ("linalg", "random"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
