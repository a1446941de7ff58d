"""The one dispatch mode of the package: it shows each operation of a capture to its listeners.

``CaptureDispatch(listeners, execute)`` is started and stopped in the thread that captures. Autograd
carries it to the threads of its own on which it runs a backward pass. Per operation it calls
``before`` of each listener, then ``execute`` (by default the operation itself), then ``after`` of
each listener. Listeners may refuse by raising; other exceptions get a note with the operation and
the user's line. A function made by ``torch.compile`` stays compiled, and what it runs is not seen.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tensorplay_core.errors import TensorplayError
from tensorplay_torch._private import PRIVATE, required

from .culprit import blame
from .inference import Inference
from .modes import DISPATCH
from .untraced import untraced

__all__ = ["CaptureDispatch", "Execute", "Explain", "Listener", "dispatches"]

Execute: TypeAlias = Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]
Explain: TypeAlias = Callable[[Exception, Any, int], Exception | None]


class Listener(Protocol):
    """What sees the operations of a capture. It runs below autograd and outside the mode."""

    def before(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """``func``, an ``OpOverload`` or a higher-order operator, is about to run."""

    def after(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """It has run."""


class CaptureDispatch(TorchDispatchMode):
    """See the module.

    Args:
        listeners: Called in this order.
        execute: Runs an operation, or does something else in its place; None runs it.
        explain: Given what an operation raised, the operation and the thread that captures, returns
            the error to raise from it in its place, or None.

    Attributes:
        thread: The thread that captures, once started.
        refusal: The first error of this package's that an operation met.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        listeners: Sequence[Listener] = (),
        execute: Execute | None = None,
        explain: Explain | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._before = [listener.before for listener in listeners]
        self._after = [listener.after for listener in listeners]
        self._execute, self._explain = execute, explain
        self._plain = required("disable_torch_function", "capturing")
        self._inference = Inference()
        self.depth: int | None = None
        self.thread = 0
        self.refusal: TensorplayError | None = None

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """True: torch would otherwise make a compiled function eager, and keep it so for good."""
        return True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        # A subclass with a dispatch of its own takes itself apart first; its parts come here.
        if types and any(dispatches(one) for one in types):
            return NotImplemented
        keywords = {} if kwargs is None else kwargs
        try:
            with self._plain():
                for before in self._before:
                    before(func, args, keywords)
                execute = self._execute
                result = (
                    func(*args, **keywords) if execute is None else execute(func, args, keywords)
                )
                for after in self._after:
                    after(func, args, keywords, result)
            return result
        except TensorplayError as error:
            self.refusal = self.refusal or error
            raise
        except Exception as error:
            blame(error, func, self.thread)
            explained = self._explain(error, func, self.thread) if self._explain else None
            if explained is None:
                raise
            raise explained from error

    def start(self) -> None:
        """Begins to see this thread's operations."""
        self.thread, self._inference = threading.get_ident(), Inference()
        DISPATCH.enter(self)

    def stop(self) -> None:
        """Stops, wherever the mode stands in the stack. Idempotent.

        Raises:
            CaptureError: Other modes, or inference mode, were not nested with this one.
        """
        crossed = None if self.depth is None else self._inference.crossing()
        DISPATCH.leave(self)
        if crossed is not None:
            raise crossed


if PRIVATE["skip_code"].value is not None:
    # torch wraps the method of each class of modes to the same end, for 3 µs an operation.
    CaptureDispatch.__torch_dispatch__ = untraced(  # type: ignore[method-assign]
        inspect.unwrap(CaptureDispatch.__torch_dispatch__)
    )


def dispatches(kind: type) -> bool:
    """True for a class of tensors that takes operations apart by itself, and may have no memory."""
    return kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__  # type: ignore[attr-defined]
