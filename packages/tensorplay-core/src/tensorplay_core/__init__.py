"""Records device work once and replays it for almost nothing, never silently wrong.

The door of ``tensorplay-core``. Users of torch or CuPy import ``tensorplay_torch`` or
``tensorplay_cupy`` instead, which give the same names bound to their arrays.
"""

from . import common, errors
from .capture import graph
from .common import *  # noqa: F403
from .control_flow import cond, while_loop
from .errors import *  # noqa: F403
from .graph import CUDAGraph, is_current_stream_capturing
from .pool import graph_pool_handle
from .protocols import SupportsCudaStream
from .runtime import Runtime, select

__version__ = "0.1.0"

__all__ = [
    # graph
    "CUDAGraph",
    "graph",
    "is_current_stream_capturing",
    # pool
    "graph_pool_handle",
    # conditional
    "cond",
    "while_loop",
    # device
    "select",
    "Runtime",
    "SupportsCudaStream",
    # about
    "__version__",
]
__all__ += common.__all__
__all__ += errors.__all__
