"""The graph API of core, bound to the CuPy driver; refusals of CuPy's come out typed."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from types import TracebackType
from typing import Any, cast

import tensorplay_core as core

from .refusals import refusal_of

__all__ = [
    "CUDAGraph",
    "cond",
    "graph",
    "graph_pool_handle",
    "host_callback",
    "is_current_stream_capturing",
    "while_loop",
]

DRIVER = "cupy"


class CUDAGraph(core.CUDAGraph):
    """CuPy work, recorded once and replayed for the price of a launch.

    Everything is as in ``tensorplay_core.CUDAGraph``, on CuPy arrays and streams. Captured work
    allocates from the graph's pool and from no other; a ``cupy.cuda.MemoryPool`` cannot be shared.
    """

    driver = DRIVER


class graph(core.graph):
    """Captures the CuPy work of its block; see ``tensorplay_core.graph`` for the arguments.

    What CuPy refuses inside raises ``OperationRefused``, which names the library, the call and the
    line, and a way round. Streams forked into the capture must outlive the block.
    """

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        refused = refusal_of(exception) if exception is not None else None
        if refused is None:
            super().__exit__(exception_type, exception, traceback)
            return
        super().__exit__(type(refused), refused, traceback)
        raise refused from exception


def graph_pool_handle(device: object = None) -> Hashable:
    """An id of a fresh memory pool; see ``tensorplay_core.graph_pool_handle``.

    Args:
        device: None, an ordinal, a name or a ``cupy.cuda.Device``; None is the current device.
    """
    return core.graph_pool_handle(device, driver=DRIVER)


def is_current_stream_capturing() -> bool:
    """True if CuPy's current stream is capturing, whichever library began the capture."""
    return core.is_current_stream_capturing(driver=DRIVER)


def cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], *operands: Any
) -> Any:
    """``true_fn(*operands) if pred else false_fn(*operands)``, eagerly and inside a capture.

    See ``tensorplay_core.cond``; the predicate is one CuPy Bool.
    """
    return core.cond(pred, true_fn, false_fn, *operands, driver=DRIVER)


def while_loop(
    test: Callable[..., Any],
    body: Callable[..., Any],
    carry: Any,
    *,
    max_steps: int | None = None,
) -> Any:
    """``while test(*carry): carry = body(*carry)``, eagerly and inside a capture.

    See ``tensorplay_core.while_loop``; the test returns one CuPy Bool.
    """
    return core.while_loop(test, body, carry, max_steps=max_steps, driver=DRIVER)


def host_callback(function: Callable[..., object], *args: object) -> None:
    """Calls ``function(*args)`` on the host once the current stream's work so far is done.

    Inside a capture each replay calls it, and the graph keeps it and its arguments; any stream
    forked into the capture will do. It must not call CUDA, and has no place in the body of a
    conditional, which is refused when that ends.

    Args:
        function: Called from a thread of the driver's; what it raises is lost.
        args: Its arguments.

    Raises:
        DriverUnavailable: There is no GPU.
    """
    from .driver.conditional import Conditionals

    cast("Conditionals", core.select(DRIVER).driver).call_back(lambda _: function(*args))
