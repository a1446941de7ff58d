"""Records device work once and replays it for almost nothing, never silently wrong.

The door of ``tensorplay-core``. Users of torch or CuPy import ``tensorplay_torch`` or
``tensorplay_cupy`` instead, which give the same names bound to their arrays.
"""

from .capture import graph
from .conditional import Body, Loop
from .control_flow import cond, while_loop
from .errors import (
    ArgumentError,
    ArgumentTypeError,
    CaptureError,
    CaptureInvalidated,
    ConditionalError,
    DriverCallFailed,
    DriverError,
    DriverUnavailable,
    EmptyCapture,
    GraphStateError,
    LoopLimitExceeded,
    OperationRefused,
    PoolError,
    PoolExhausted,
    PoolMismatch,
    PredicateError,
    ReplayError,
    SignatureMismatch,
    StaleGraph,
    TensorplayError,
    UnjoinedWork,
    UnknownDriver,
    UnsupportedByDriver,
)
from .graph import CUDAGraph, is_current_stream_capturing
from .inspection import export_dot
from .pool import graph_pool_handle
from .protocols import PoolStatistics, SupportsCudaStream
from .registry import close_all
from .runtime import Runtime, select
from .scopes import AnnotatedNode, annotate, annotations, clear_annotations
from .topology import Node, Topology

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
    # pool
    "graph_pool_handle",
    "PoolStatistics",
    # conditional
    "cond",
    "while_loop",
    "Body",
    "Loop",
    # device
    "select",
    "Runtime",
    "SupportsCudaStream",
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
