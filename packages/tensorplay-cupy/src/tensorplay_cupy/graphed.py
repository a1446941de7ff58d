"""``graphed``: a function of CuPy arrays, captured at its first call and replayed from then on."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import update_wrapper
from types import MethodType
from typing import Any, Generic, ParamSpec, TypeVar, overload

from tensorplay_core.errors import (
    ArgumentTypeError,
    CaptureError,
    GraphStateError,
    OperationRefused,
    SignatureMismatch,
)
from tensorplay_core.protocols import CaptureMode, StagePlan
from tensorplay_core.signature import ArrayFacts, differences, facts

from .graphs import CUDAGraph, graph
from .refusals import refusing
from .trees import Tree, flatten

__all__ = ["GraphedFunction", "graphed"]

P = ParamSpec("P")
R = TypeVar("R")


class GraphedFunction(Generic[P, R]):
    """What ``graphed`` returns: call it as the function.

    As a method of a class it serves each instance by a graph of its own.

    Attributes:
        cuda_graph: The graph, once it was captured; for ``topology``, ``memory``, pictures.
    """

    def __init__(
        self, function: Callable[P, R], pool: object, capture_error_mode: CaptureMode
    ) -> None:
        update_wrapper(self, function)
        self._function, self._pool, self._mode = function, pool, capture_error_mode
        self._lock = threading.RLock()
        self._attribute = ""
        self._forget()

    def __repr__(self) -> str:
        name = getattr(self._function, "__qualname__", repr(self._function))
        state = "not captured yet" if self.cuda_graph is None else repr(self.cuda_graph)
        return f"<graphed {name}: {state}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Results in memory of their own. The first call runs eagerly, and captures.

        Inside a capture it only calls the function, whose work goes into that graph.

        Raises:
            SignatureMismatch: Arguments unlike those of the first call; nothing was run.
            OperationRefused: The function writes an argument, or CuPy refuses what it does.
            ArgumentTypeError: An argument is an array on the host or of another library.
        """
        arrays, tree = _arguments(args, kwargs)
        if self._plan is None:
            if _capturing():
                return self._inlined(arrays, tree)
            with self._lock:
                if self._plan is None:
                    return self._first(arrays, tree)
        return self._replay(arrays, tree)

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> GraphedFunction[P, R]:
        """Captures for arguments like these without running anything; returns this object.

        What has to be set up (compiled, planned) by a first run makes it fail: then call once.

        Raises:
            GraphStateError: It is captured already.
            OperationRefused: CuPy refuses what it does.
            ArgumentTypeError: As a call.
        """
        arrays, tree = _arguments(args, kwargs)
        with self._lock:
            if self._plan is not None:
                raise GraphStateError(
                    doing="preparing",
                    subject=repr(self),
                    met="it is captured already",
                    remedy="Call release() first.",
                )
            self._capture([_static(array) for array in arrays], arrays, tree)
        return self

    def release(self) -> None:
        """Ends the graph; the next call captures anew, for its own arguments. Idempotent."""
        with self._lock:
            before = self.cuda_graph
            self._forget()
        if before is not None:
            before.close()

    @property
    def original(self) -> Callable[P, R]:
        """The function without a graph."""
        return self._function

    def __set_name__(self, owner: type, name: str) -> None:
        self._attribute = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        bound = GraphedFunction(MethodType(self._function, instance), self._pool, self._mode)
        attributes = getattr(instance, "__dict__", None)
        if attributes is None or not self._attribute:
            return bound
        # From now on the instance's own attribute is found in place of the class's.
        return attributes.setdefault(self._attribute, bound)

    def _forget(self) -> None:
        self.cuda_graph: CUDAGraph | None = None
        self._plan: StagePlan | None = None
        self._captured: tuple[list[ArrayFacts], Tree] = ([], Tree((), ()))
        self._results = Tree((), ())

    def _first(self, arrays: list[Any], tree: Tree) -> R:
        """The first call: eager, on buffers of its own, then the capture."""
        static = [_static(array) for array in arrays]
        made, results = self._run(static, tree)
        owned = [array.copy() for array in made]
        _refuse_written(static, arrays, tree, self)
        self._capture(static, arrays, tree)
        return results.filled(owned)  # type: ignore[no-any-return]

    def _run(self, static: list[Any], tree: Tree) -> tuple[list[Any], Tree]:
        args, kwargs = tree.filled(static)
        with refusing():
            return flatten(self._function(*args, **kwargs), _is_array, "result")

    def _capture(self, static: list[Any], arrays: list[Any], tree: Tree) -> None:
        import cupy

        made = CUDAGraph()
        try:
            with graph(made, self._pool, capture_error_mode=self._mode, allow_empty=True):
                yielded, results = self._run(static, tree)
                # A result that is no piece of memory of its own can be copied as one afterwards.
                dense = [cupy.ascontiguousarray(array) for array in yielded]
            plan = made.stage(static, dense)
        except BaseException:
            made.close()
            raise
        self.cuda_graph, self._results = made, results
        self._captured = ([facts(array) for array in map(_dense, arrays)], tree)
        self._plan = plan

    def _replay(self, arrays: list[Any], tree: Tree) -> R:
        dense = [_dense(array) for array in arrays]
        found = self._captured[1].differences(tree)
        if found:
            raise self._mismatch(found)
        plan = self._plan
        assert plan is not None
        try:
            return self._results.filled(plan(dense))  # type: ignore[no-any-return]
        except SignatureMismatch as error:
            found = self._unlike(dense)
            if not found:
                raise
            raise self._mismatch(found) from error
        except CaptureError:
            if not _capturing():
                raise
            return self._inlined(arrays, tree)

    def _inlined(self, arrays: list[Any], tree: Tree) -> R:
        """Inside a capture it is its function: its work is that graph's."""
        args, kwargs = tree.filled(arrays)
        return self._function(*args, **kwargs)

    def _unlike(self, dense: list[Any]) -> list[str]:
        captured, tree = self._captured
        found = []
        for line in differences(captured, dense):
            match = re.match(r"inputs\[(\d+)\]", line)
            found.append(line if match is None else tree.paths[int(match[1])] + line[match.end() :])
        return found

    def _mismatch(self, found: list[str]) -> SignatureMismatch:
        return SignatureMismatch(
            differences=map(_path, found),
            subject=repr(self),
            remedy="Pass arguments like those captured, or release() it to capture for these.",
        )


@overload
def graphed(function: Callable[P, R], /) -> GraphedFunction[P, R]: ...
@overload
def graphed(
    *, pool: object = None, capture_error_mode: CaptureMode = "global"
) -> Callable[[Callable[P, R]], GraphedFunction[P, R]]: ...
def graphed(
    function: Callable[P, R] | None = None,
    /,
    *,
    pool: object = None,
    capture_error_mode: CaptureMode = "global",
) -> GraphedFunction[P, R] | Callable[[Callable[P, R]], GraphedFunction[P, R]]:
    """Makes a function of CuPy arrays one graph, captured at its first call.

    ::

        @graphed
        def step(u, dt):
            return u + dt * laplacian(u)

        u = step(u, 0.1)        # eager, and captured
        u = step(u, 0.1)        # replayed: one launch

    The first call runs eagerly, so it does what any call does and sets up what has to be; then the
    function is called once more to be captured. Arguments may be nested tuples, lists and dicts:
    CuPy arrays are copied into the graph's buffers at each call, everything else is a constant that
    must stay equal. Arrays that the function reads or writes otherwise (by closure) are the
    graph's own operands, at their addresses. Results are in memory of their own.

    Args:
        function: It must not write its array arguments, which is refused.
        pool: As in ``graph``.
        capture_error_mode: As in ``graph``.

    Returns:
        A ``GraphedFunction``, called as the function; ``prepare`` captures ahead, ``release``
        ends the graph.
    """
    if function is not None:
        return GraphedFunction(function, pool, capture_error_mode)
    return lambda given: GraphedFunction(given, pool, capture_error_mode)


def _is_array(value: Any) -> bool:
    import cupy

    return isinstance(value, cupy.ndarray)


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Tree]:
    arrays, tree = flatten((args, kwargs), _is_array, "")
    _, others = flatten((args, kwargs), _is_other, "")
    if others.paths:
        raise ArgumentTypeError(
            doing="calling",
            subject="a graphed function",
            met=f"{_path(others.paths[0])} is an array on the host or of another library",
            remedy="Pass CuPy arrays: cupy.asarray(x), or cupy.from_dlpack(x) without a copy.",
        )
    return arrays, tree


def _is_other(value: Any) -> bool:
    return not _is_array(value) and any(
        hasattr(type(value), name) for name in ("__array_interface__", "__dlpack__")
    )


def _static(array: Any) -> Any:
    import cupy

    made = cupy.empty_like(_dense(array))
    made[...] = array
    return made


def _dense(array: Any) -> Any:
    import cupy

    flags = array.flags
    return array if flags.c_contiguous or flags.f_contiguous else cupy.ascontiguousarray(array)


def _refuse_written(static: list[Any], arrays: list[Any], tree: Tree, subject: object) -> None:
    for buffer, given, path in zip(static, arrays, tree.paths, strict=True):
        if bool((_bytes(buffer) == _bytes(_dense(given))).all()):
            continue
        raise OperationRefused(
            operation=f"writing {_path(path)}",
            doing="capturing",
            subject=repr(subject),
            met=f"the function writes {_path(path)}, an array that it was given, and replays work "
            "on copies, so the caller's array would not change",
            remedy="Return the new value, or let the function reach the array by closure.",
        )


def _bytes(array: Any) -> Any:
    # Of the memory as it lies: NaN is equal to itself then, and -0.0 is not 0.0.
    return array.ravel(order="K").view("B")


def _path(path: str) -> str:
    """``"[0][1]['a']"``, in ``(args, kwargs)``, as ``"args[1]['a']"``."""
    named = {"0": "args", "1": "kwargs"}
    return re.sub(r"^(len\()?\[([01])\]", lambda at: (at[1] or "") + named[at[2]], path)


def _capturing() -> bool:
    from .streams import capturing

    return capturing()
