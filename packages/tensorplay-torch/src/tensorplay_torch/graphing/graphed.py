"""``graphed``: a function of tensors, captured at its first call and replayed from then on."""

from __future__ import annotations

import copy
import functools
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any, Literal, overload

from torch import nn

from tensorplay_core.errors import GraphStateError
from tensorplay_core.protocols import CaptureMode
from tensorplay_torch.tracking.untraced import untraced

from .callables import already_graphed, graph_together, refuse_graphed
from .nesting import device_of, inside
from .serving import CallCounts, Graphed
from .settings import Settings, checked_settings

__all__ = ["GraphedFunction", "graphed"]

Function = Callable[..., Any]


class GraphedFunction:
    """What ``graphed`` returns: call it as the function.

    As a method of a class it serves each instance by graphs of its own. A copy of it, or of an
    instance, is captured anew.

    Args:
        function: What is called.
        settings: How to capture.
        pool: As for ``graph()``.

    Attributes:
        graphed: What serves the calls; None before the capture and after ``release``.
    """

    def __init__(self, function: Function, settings: Settings, pool: object) -> None:
        functools.update_wrapper(self, function)
        self.graphed: Graphed | None = None
        self._function, self._settings, self._pool = function, settings, pool
        self._attribute = ""
        self._lock = threading.RLock()
        self._of_classes: weakref.WeakKeyDictionary[type, GraphedFunction] = (
            weakref.WeakKeyDictionary()
        )

    @untraced
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Replays the function for these arguments; the first call captures it for them.

        Raises:
            SignatureMismatch: The arguments, or autocast, differ from those of the first call.
            StaleGraph: What the graphs read is not what it was at the capture.
            CaptureError: The function cannot be captured.
        """
        serving = self.graphed
        if serving is None:
            if inside(device_of((args, kwargs))):
                return self._function(*args, **kwargs)
            serving = self._prepared(args, kwargs)
        return serving(*args, **kwargs)

    def prepare(self, *args: Any, **kwargs: Any) -> GraphedFunction:
        """Captures the function for calls with arguments like these; returns this object.

        Raises:
            CaptureError: It cannot be captured.
            GraphStateError: It is captured already.
        """
        with self._lock:
            if self.graphed is not None:
                raise GraphStateError(
                    doing="preparing",
                    subject=repr(self),
                    met="it is captured already",
                    remedy="Call release() first.",
                )
            self._prepared(args, kwargs)
        return self

    def release(self) -> None:
        """Gives back graphs and memory; the next call captures anew. Idempotent."""
        with self._lock:
            serving, self.graphed = self.graphed, None
            if serving is not None:
                serving.release()

    @property
    def original(self) -> Function:
        """The function without graphs."""
        return self._function

    @property
    def counts(self) -> CallCounts:
        """What became of the calls since the last capture."""
        return self.graphed.counts if self.graphed is not None else CallCounts(0, 0, 0)

    def __repr__(self) -> str:
        name = getattr(self, "__qualname__", type(self._function).__qualname__)
        return f"<graphed {name}, {self.counts if self.graphed is not None else 'not captured'}>"

    def __set_name__(self, owner: type, name: str) -> None:
        self._attribute = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None or isinstance(self._function, staticmethod):
            return self
        if isinstance(instance, type) and instance in self._of_classes:
            return self._of_classes[instance]
        bound = GraphedFunction(
            types.MethodType(self._function, instance), self._settings, self._pool
        )
        if isinstance(instance, type):
            # As a class method; a class has no attributes of its own that go first.
            return self._of_classes.setdefault(instance, bound)
        attributes = getattr(instance, "__dict__", None)
        if attributes is None or not self._attribute:
            return bound
        # From now on the instance's own attribute is found in place of the class's.
        return attributes.setdefault(self._attribute, bound)

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphedFunction:
        return GraphedFunction(copy.deepcopy(self._function, memo), self._settings, self._pool)

    def __reduce__(self) -> Any:
        module = sys.modules.get(getattr(self, "__module__", ""))
        name = getattr(self, "__qualname__", "")
        if name and getattr(module, name, None) is self:
            return name
        return (GraphedFunction, (self._function, self._settings, self._pool))

    def _prepared(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graphed:
        with self._lock:
            if self.graphed is None:
                (self.graphed,) = graph_together(
                    [self._function], [args], [kwargs], self._settings, self._pool
                )
            return self.graphed


@overload
def graphed(
    function: Function,
    *,
    num_warmup_iters: int = ...,
    allow_unused_input: bool = ...,
    pool: object = ...,
    capture_error_mode: CaptureMode = ...,
    param_grads: Literal["autograd", "in_graph"] = ...,
    outputs: Literal["copy", "alias"] = ...,
    slots: int = ...,
    retain_graph: bool = ...,
    on_change: Literal["raise", "recapture"] = ...,
) -> GraphedFunction: ...


@overload
def graphed(
    *,
    num_warmup_iters: int = ...,
    allow_unused_input: bool = ...,
    pool: object = ...,
    capture_error_mode: CaptureMode = ...,
    param_grads: Literal["autograd", "in_graph"] = ...,
    outputs: Literal["copy", "alias"] = ...,
    slots: int = ...,
    retain_graph: bool = ...,
    on_change: Literal["raise", "recapture"] = ...,
) -> Callable[[Function], GraphedFunction]: ...


def graphed(
    function: Function | None = None,
    *,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = True,
    pool: object = None,
    capture_error_mode: CaptureMode = "global",
    param_grads: Literal["autograd", "in_graph"] = "autograd",
    outputs: Literal["copy", "alias"] = "copy",
    slots: int = 1,
    retain_graph: bool = False,
    on_change: Literal["raise", "recapture"] = "raise",
) -> GraphedFunction | Callable[[Function], GraphedFunction]:
    """A function whose calls are replays: captured at the first call, or by ``.prepare(*args)``.

    ::

        @graphed
        def step(x, mask):
            return model(x) * mask

    Its results are the caller's own, and a call that differs from the first in anything but the
    values of its tensors is refused, with every difference by its path. Modules that the function
    runs are found in its closure and globals; in the other train/eval mode it runs without graphs.

    Args:
        function: A function of tensors, or a module, which is left as it is. Left out, ``graphed``
            returns a decorator.
        num_warmup_iters: As for ``make_graphed_callables``.
        allow_unused_input: The same; here inputs and parameters need have no part in the outputs.
        pool: The same.
        capture_error_mode: The same.
        param_grads: The same.
        outputs: The same.
        slots: The same.
        retain_graph: The same.
        on_change: The same.

    Raises:
        ArgumentError: An argument is out of its range.
        ArgumentTypeError: The function is none.
        GraphStateError: It is graphed already.
    """
    settings = checked_settings(
        num_warmup_iters=num_warmup_iters,
        allow_unused_input=allow_unused_input,
        capture_error_mode=capture_error_mode,
        param_grads=param_grads,
        outputs=outputs,
        slots=slots,
        retain_graph=retain_graph,
        on_change=on_change,
    )

    def wrap(function: Function) -> GraphedFunction:
        refuse_graphed(function)
        if isinstance(function, GraphedFunction):
            raise already_graphed(function)
        # As the call of the module, its own hooks are part of what a replay could not do.
        called = function.__call__ if isinstance(function, nn.Module) else function
        return GraphedFunction(called, settings, pool)

    return wrap if function is None else wrap(function)
