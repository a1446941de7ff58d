"""CUDA graphs for PyTorch that are never silently wrong, with or without a GPU.

The graph API of ``tensorplay_core``, bound to torch: import this package alone.
"""

from tensorplay_core import common, errors, graph
from tensorplay_core.common import *  # noqa: F403
from tensorplay_core.errors import *  # noqa: F403

from .checking.findings import Finding
from .checking.preflight import Report, preflight
from .checking.verify import assert_replay_equals_eager
from .graphing.callables import make_graphed_callables, release
from .graphing.graphed import GraphedFunction, graphed
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
    # callables
    "make_graphed_callables",
    "graphed",
    "GraphedFunction",
    "release",
    # checks
    "preflight",
    "Report",
    "Finding",
    "assert_replay_equals_eager",
    # pool
    "graph_pool_handle",
    # conditional
    "cond",
    "while_loop",
    # about
    "__version__",
]
__all__ += common.__all__
__all__ += errors.__all__
