"""The staged launch of the common case as one closure: every step in it, no call around them.

It serves calls on the current stream whose inputs pass the cheapest check, lie apart from the
buffers, and need not be held. Whatever is unusual goes the long way, which knows every case.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .launchers import Embedded

if TYPE_CHECKING:
    from .staging import StagedLaunch

__all__ = ["express"]

_REMEMBERED = 4096

Plan = Callable[..., tuple[Any, ...]]


def express(
    staged: StagedLaunch,
    guard: Callable[..., bool],
    plain: Callable[[Sequence[Any]], bool],
    fresh: Callable[[], tuple[Any, ...]] | None = None,
) -> Plan:
    """``plan(inputs, *, stream=None) -> results``.

    Args:
        staged: The long way.
        guard: True if inputs, given as its arguments, are like the static ones; it may say no to
            some that are.
        plain: Asked first, of inputs at addresses that no inputs had before: False if they may not
            be given to ``guard``.
        fresh: Allocates all results at once, for work on the current stream.
    """
    executable, order, turn, hot = staged.executable, staged.order, staged.turn, staged.hot
    pointer, apart = staged.pointer, staged.apart
    results, count, handle = staged.results, len(staged.static), hot.handle
    make = fresh or (lambda: tuple(map(staged.allocate, results)))
    take, wait, give = turn.take, turn.wait, turn.give
    capturing, set_kernel, launch, raised = hot.capturing, hot.set_kernel, hot.launch, hot.raised
    context, own = hot.context, staged.context
    current, elsewhere = executable.current, executable.elsewhere
    here = current if handle is int else lambda: handle(current())

    # The addresses of inputs come from a few places over and over. Those known to lie apart are
    # kept with their bytes, ready for the table: one look-up settles both.
    known: dict[tuple[int, ...], bytes] = {}

    launcher, generation = staged.launcher, staged.generation
    rail = launcher.rail() if isinstance(launcher, Embedded) else None
    if rail is None:
        return staged
    table, native, graph, node = rail.table.memory(), rail.native, rail.executable, rail.node
    parameters, size = rail.parameters, 8 * count
    fill = struct.Struct(f"<{len(results)}Q").pack_into
    pack = struct.Struct(f"<{count}Q").pack

    def plan(inputs: Sequence[Any], *, stream: object = None) -> tuple[Any, ...]:
        if stream is not None or len(inputs) != count:
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
        if results:
            made = make()
            addresses = tuple(map(pointer, made))
        where, code, unusual = here(), 0, False
        if elsewhere is not None and elsewhere(where):
            return staged(inputs, stream=stream)
        mine = True
        try:
            try:
                take()
            except IndexError:
                mine = False
                mine = wait()
            if (
                executable.closed
                or executable.dead
                or executable.generation != generation
                or context() != own
                or capturing(where)
            ):
                unusual = True
            else:
                moved = order.last is not native or order.where != where
                if moved:
                    code = order.before(where, native)
                if not code:
                    table[:size] = packed
                    if results:
                        fill(table, size, *addresses)
                    result = set_kernel(graph, node, parameters)
                    if not result or not result[0]:
                        result = launch(graph, where)
                    code = result[0] if result else 0
                    if moved and not code:
                        code = order.after(where, native, keep=launcher)
        except raised as error:
            code = error.status
        finally:
            if mine:
                give(None)
            mine = False
        if unusual or (code and executable.mended(code)):
            return staged(inputs, stream=stream)
        if code:
            executable.fail(code, "a staged launch")
        return made

    def remembered(sources: tuple[int, ...]) -> bytes:
        if len(known) >= _REMEMBERED:
            known.clear()
        packed = known[sources] = pack(*sources)
        return packed

    return plan
