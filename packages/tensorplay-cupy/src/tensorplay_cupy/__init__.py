"""CUDA graphs, memory pools and conditionals for CuPy: the public door of ``tensorplay-cupy``.

The whole graph API of ``tensorplay_core`` bound to CuPy, and ``graphed``. What CuPy itself refuses
inside a capture is in ``tensorplay_cupy.linalg`` and ``tensorplay_cupy.random``. Nothing imports
CuPy before it is used. CuPy work is not rehearsed on a CPU: without a GPU nothing is captured.
"""

import importlib
import types

from tensorplay_core import common, errors
from tensorplay_core.common import *  # noqa: F403
from tensorplay_core.errors import *  # noqa: F403

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


def __getattr__(name: str) -> types.ModuleType:
    """``tensorplay_cupy.linalg`` and ``.random``, imported when they are first asked for."""
    if name in ("linalg", "random"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
