"""``graph()``: the ``with`` block that captures, and unwinds whatever breaks inside it."""

from __future__ import annotations

from types import TracebackType

from .errors import ArgumentTypeError, TensorplayError
from .graph import CUDAGraph
from .protocols import CaptureMode

__all__ = ["graph"]


class graph:
    """Captures the work of its block into ``cuda_graph``.

    ::

        g = CUDAGraph()
        with graph(g):
            y = f(x)        # recorded, not run
        g.replay()          # y now holds f(x)

    Arrays born in the block are the graph's static buffers: they change at each replay. If the
    block raises, the capture is discarded, everything is as before, and the exception goes on; only
    a library's own word for a broken capture comes out as a ``CaptureError``, raised from it.

    Args:
        cuda_graph: The graph to capture into, empty or reset. The ``with`` yields it.
        pool: None for a private pool; an id of ``graph_pool_handle()``, another graph, its
            ``pool_id``, or the framework's pool object, to share that pool.
        stream: The stream to capture on; None is a side stream of the device.
        capture_error_mode: ``"global"``, ``"thread_local"`` or ``"relaxed"``, as in
            ``CUDAGraph.capture_begin``.
        enable_annotations: Record the ``annotate`` scopes of captured work: its nodes carry them in
            ``topology`` and pictures, and ``annotations()`` lists them.
        check_input_liveness: Hold external inputs weakly and raise at a replay after one died,
            instead of keeping them alive.
        device: The device to capture on; None is the graph's, else the current one.
        track_operands: Keep external inputs alive as long as the graph can run. Without it capture
            is cheaper and that is the caller's duty.
        allow_empty: Accept a capture that recorded nothing.

    Raises:
        ArgumentTypeError: ``cuda_graph`` is no graph.
        GraphStateError: The graph is capturing, already captured, or closed.
        CaptureError: The capture could not be begun or ended; see the subclasses.
    """

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: object = None,
        stream: object = None,
        capture_error_mode: CaptureMode = "global",
        enable_annotations: bool = False,
        check_input_liveness: bool = False,
        *,
        device: object = None,
        track_operands: bool = True,
        allow_empty: bool = False,
    ) -> None:
        if not isinstance(cuda_graph, CUDAGraph):
            kind = type(cuda_graph)
            raise ArgumentTypeError(
                doing="capturing into",
                subject=f"{cuda_graph!r:.80}",
                met=f"it is a {kind.__module__}.{kind.__qualname__}, and none of this library's",
                remedy="Make it with the CUDAGraph that is imported beside graph: "
                "with graph(CUDAGraph()) as g: ... A graph that another library captured stays "
                "its owner's to replay; pool= takes it, to share its memory.",
            )
        self._graph = cuda_graph
        self._device = device
        self._begin = (pool, capture_error_mode, stream)
        self._options = (track_operands, check_input_liveness, enable_annotations)
        self._allow_empty = allow_empty

    def __enter__(self) -> CUDAGraph:
        if self._device is not None:
            self._graph._move(self._device)
        try:
            self._graph._begin(*self._begin, *self._options)
        except Exception:
            raise
        except BaseException as error:
            # An interrupt once it had begun: there will be no `__exit__`.
            self._graph._abort(error)
            raise
        return self._graph

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exception is None:
            self._graph._end(allow_empty=self._allow_empty)
            return
        if not isinstance(exception, TensorplayError):
            exception.add_note(f"while capturing {self._graph!r}; the capture was discarded")
        explained = self._graph._abort(exception)
        if explained is not None:
            raise explained from exception
