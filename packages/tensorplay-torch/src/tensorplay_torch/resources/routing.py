"""Where allocations go while a conditional body, or a block routed to a pool, is captured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tensorplay_torch._private import PRIVATE, required

from .devices import index_of
from .ids import Native
from .pools import Begun, TorchPool

__all__ = ["release_bodies", "routed", "routed_body"]


@contextmanager
def routed(pool: TorchPool, native: Native, begun: Begun) -> Iterator[None]:
    """Allocations of the stream current at entry come from ``native`` while entered.

    It goes by stream, not by thread, because the autograd engine allocates from threads of its
    own. Each entry counts in ``begun``, for ``release_bodies`` to give back.
    """
    with _routed("begin_allocate_stream", pool, native, begun):
        yield


@contextmanager
def routed_body(pool: TorchPool, natives: tuple[Native, Native], begun: Begun) -> Iterator[None]:
    """As ``routed``, from the first of two ids, for the body of a conditional.

    What this thread allocates on other streams, forked inside the body, comes from the second:
    torch would take it for eager work and hand the memory to others.
    """
    by_stream, by_thread = natives
    with (
        _routed("begin_allocate_stream", pool, by_stream, begun),
        _routed("begin_allocate_thread", pool, by_thread, begun),
    ):
        yield


@contextmanager
def _routed(how: str, pool: TorchPool, native: Native, begun: Begun) -> Iterator[None]:
    index = index_of(pool.device)
    begin = required(how, "routing allocations")
    end = required("end_allocate", "routing allocations")
    begin(index, native)
    begun[native] += 1
    pool.used = True
    if native != pool.native:
        pool.bodies[native] += 1
    try:
        yield
    finally:
        end(index, native)


def release_bodies(pool: TorchPool, begun: Begun) -> None:
    """Gives back what ``routed`` began; the memory returns with the last tensor in it."""
    if not begun:
        return
    release = PRIVATE["release_pool"].value
    index = index_of(pool.device)
    while begun:
        native = next(iter(begun))
        while begun[native] > 0:
            # Once each, also if an interrupt has this called again: none comes before the call.
            begun[native] -= 1
            pool.bodies[native] -= 1
            if release is not None:
                release(index, native)
        if pool.bodies[native] <= 0:
            del pool.bodies[native]
        del begun[native]
