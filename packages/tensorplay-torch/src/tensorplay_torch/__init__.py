"""CUDA graphs for PyTorch that are never silently wrong, with or without a GPU.

The graph API of ``tensorplay_core``, bound to torch: import this package alone.
"""

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
    graph,
)

from .checking.findings import Finding
from .checking.preflight import Report, preflight
from .checking.verify import assert_replay_equals_eager
from .graphing.callables import make_graphed_callables, release
from .graphing.graphed import graphed
from .graphs import (
    CUDAGraph,
    cond,
    graph_pool_handle,
    is_current_stream_capturing,
    while_loop,
)

__version__ = "0.1.0"

__all__ = [
    # graph
    "CUDAGraph",
    "graph",
    "is_current_stream_capturing",
    "export_dot",
    "close_all",
    "Topology",
    "Node",
    # annotations
    "annotate",
    "annotations",
    "clear_annotations",
    "AnnotatedNode",
    # callables
    "make_graphed_callables",
    "graphed",
    "release",
    # checks
    "preflight",
    "Report",
    "Finding",
    "assert_replay_equals_eager",
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
