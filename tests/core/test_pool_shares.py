"""Shares in a pool: the last one to go gives it back, however often it is let go."""

from __future__ import annotations

from tensorplay_core import select
from tensorplay_core.pool import _shares, acquire


def test_a_share_may_be_let_go_twice() -> None:
    runtime = select("host")
    before = dict(_shares)
    first = acquire(runtime, None, "host")
    second = acquire(runtime, first.id, "host")
    assert second.pool is first.pool
    first.release()
    first.release()
    assert not second.pool.released
    second.release()
    assert second.pool.released
    second.release()
    assert _shares == before


def test_an_id_serves_again_once_nobody_holds_it() -> None:
    runtime = select("host")
    first = acquire(runtime, None, "host")
    first.release()
    second = acquire(runtime, first.id, "host")
    first.release()
    assert second.id == first.id
    assert not second.pool.released
    second.release()
