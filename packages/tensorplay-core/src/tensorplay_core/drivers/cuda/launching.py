"""The launch of an executable as one closure: every step in it, no call around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .streams import handle_of
from .turn import Turn

if TYPE_CHECKING:
    from .conditions import Call
    from .contexts import CudaDevice
    from .executable import CudaExecutable
    from .work import Work

__all__ = ["current_of", "launcher"]


def launcher(
    work: Work,
    native: Any,
    call: Call,
    turn: Turn,
    current: Callable[[], int],
    executable: CudaExecutable,
) -> tuple[
    Callable[..., None],
    Callable[[object], Any],
    Callable[[Call], None],
    Callable[[Any, Any], None],
]:
    """``launch``, ``target``, what changes the call that ``launch`` makes, what its failures go to.

    All that ``launch`` uses is local to this function: it is the whole cost of a replay beside the
    driver's own, and an attribute look-up is a hundredth of that.
    """
    hot = work.hot
    handle, raised, native = hot.handle, hot.raised, hot.native(native)
    take, wait, give = turn.take, turn.wait, turn.give
    known: tuple[object, Any] = (executable, None)
    here = current if handle is int else lambda: handle(current())

    def target(stream: object = None) -> Any:
        return here() if stream is None else handle(handle_of(stream))

    def launch(stream: object = None) -> None:
        nonlocal known
        if stream is None:
            where = here()
        else:
            held, where = known
            if stream is not held:
                where = handle(handle_of(stream))
                known = stream, where
        mine = True
        try:
            try:
                take()
            except IndexError:
                mine = False
                mine = wait()
            result = call(native, where)
        except raised as error:
            result = (error.status,)
        finally:
            if mine:
                give(None)
            mine = False
        if result and result[0]:
            failed(result[0], where)

    def failed(code: Any, where: Any) -> None:
        if executable.mended(code):
            with turn:
                try:
                    result = call(native, where)
                except raised as error:
                    result = (error.status,)
            code = result[0] if result else 0
        if code:
            executable.fail(code, "cuGraphLaunch")

    def rebind(changed: Call) -> None:
        nonlocal call
        call = changed

    return launch, target, rebind, failed


def current_of(work: Work, device: CudaDevice) -> Callable[[], int]:
    """Tells the handle of this thread's current stream on ``device``; 0 is the default stream."""
    state, ordinal = work.current, int(device)

    def current() -> int:
        return state.streams.get(ordinal, 0)

    return current
