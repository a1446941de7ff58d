"""The staged launch of the common case as one closure: every step in it, no call around them.

It serves calls on the current stream whose inputs pass the cheapest check, lie apart from the
buffers, and need not be held. Whatever is unusual goes the long way, which knows every case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .launchers import Embedded

if TYPE_CHECKING:
    from .staging import StagedLaunch

__all__ = ["express"]

_REMEMBERED = 4096

Plan = Callable[..., tuple[Any, ...]]


def express(
    staged: StagedLaunch, guard: Callable[..., bool], plain: Callable[[Sequence[Any]], bool]
) -> Plan:
    """``plan(inputs, *, stream=None) -> results``.

    Args:
        staged: The long way.
        guard: True if inputs, given as its arguments, are like the static ones; it may say no to
            some that are.
        plain: Asked first, of inputs at addresses that no inputs had before: False if they may not
            be given to ``guard``.
    """
    executable, order, turn, hot = staged.executable, staged.order, staged.turn, staged.hot
    pointer, allocate, apart = staged.pointer, staged.allocate, staged.apart
    results, count, handle = staged.results, len(staged.static), hot.handle
    take, wait, give = turn.take, turn.wait, turn.give
    capturing, set_kernel, launch, raised = hot.capturing, hot.set_kernel, hot.launch, hot.raised
    current = executable.current
    here = current if handle is int else lambda: handle(current())

    # The addresses of inputs come from a few places over and over. Those known to lie apart are
    # kept with their bytes, ready for the table: one look-up settles both.
    known: dict[tuple[int, ...], bytes] = {}

    launcher, generation = staged.launcher, staged.generation
    rail = launcher.rail() if isinstance(launcher, Embedded) else None

    def plan(inputs: Sequence[Any], *, stream: object = None) -> tuple[Any, ...]:
        if stream is not None or rail is None or len(inputs) != count:
            return staged(inputs, stream=stream)
        try:
            sources = tuple(map(pointer, inputs))
        except (AttributeError, TypeError, RuntimeError):  # They are no arrays, or have no memory.
            return staged(inputs, stream=stream)
        packed = known.get(sources)
        if packed is None:
            if not (plain(inputs) and guard(*inputs) and apart(sources)):
                return staged(inputs, stream=stream)
            packed = remembered(sources)
        elif not guard(*inputs):
            return staged(inputs, stream=stream)
        made: tuple[Any, ...] = ()
        tail = b""
        if results:
            made = tuple(map(allocate, results))
            tail = rail.pack(map(pointer, made))
        where, code, unusual = here(), 0, False
        try:
            try:
                take()
            except IndexError:
                wait()
            if (
                executable.closed
                or executable.dead
                or executable.generation != generation
                or capturing(where)
            ):
                unusual = True
            else:
                moved = order.last is not rail.native or order.where != where
                if moved:
                    code = order.before(where, rail.native)
                if not code:
                    rail.table[: rail.size] = packed + tail
                    result = set_kernel(rail.executable, rail.node, rail.parameters)
                    if not result or not result[0]:
                        result = launch(rail.executable, where)
                    code = result[0] if result else 0
                    if moved and not code:
                        code = order.after(where, rail.native, keep=launcher)
        except raised as error:
            code = error.status
        finally:
            give(None)
        if unusual or (code and executable.mended(code)):
            return staged(inputs, stream=stream)
        if code:
            executable.fail(code, "a staged launch")
        return made

    def remembered(sources: tuple[int, ...]) -> bytes:
        assert rail is not None
        if len(known) >= _REMEMBERED:
            known.clear()
        packed = known[sources] = rail.pack(sources)
        return packed

    return plan
