"""Ctrl-C at any moment of a capture leaves nothing on, and the next capture works."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from types import FrameType
from typing import Any

import pytest

from tensorplay_core import CUDAGraph, graph, reclaim, registry, select
from tensorplay_core.pool import _shares


class HostGraph(CUDAGraph):
    driver = "host"


DRIVER: Any = select("host").driver


class Interrupt:
    """A profiler that raises KeyboardInterrupt at the n-th moment an interrupt can arrive.

    CPython looks for signals when a function begins and after a call into C; not before such a
    call, nor between the return of a Python function and the store of its result.
    """

    def __init__(self, moment: int) -> None:
        self.left, self.where = moment, ""

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event not in ("call", "c_return") or "tensorplay_core" not in frame.f_code.co_filename:
            return
        self.left -= 1
        # Python itself drops what a finaliser raises.
        if self.left <= 0 and not in_finaliser(frame):
            self.where = f"{event} in {frame.f_code.co_qualname}, line {frame.f_lineno}"
            raise KeyboardInterrupt(self.where)

    @contextmanager
    def armed(self) -> Iterator[None]:
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)


def in_finaliser(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name in ("__del__", "_note"):
            return True
        frame = frame.f_back
    return False


def surroundings() -> tuple[object, ...]:
    capturing = DRIVER._capturing
    return (
        gc.isenabled(),
        reclaim.captures_live(),
        registry.capturing_here(),
        DRIVER.current,
        len(capturing.live),
        len(DRIVER._pools),
        len(_shares),
        [stream for stream in capturing.streams.values() if stream.lane is not None],
    )


def plain(made: HostGraph, total: Any, flag: Any) -> None:
    with graph(made):
        DRIVER.memset(total, 1.0)


def with_bodies(made: HostGraph, total: Any, flag: Any) -> None:
    with graph(made):
        kept = DRIVER.buffer(1, "f")
        with made.if_then(flag):
            DRIVER.copy(kept, total)
            with made.while_loop(flag, max_steps=2):
                DRIVER.buffer(2, "f")
                DRIVER.memset(total, 2.0)


def with_annotations(made: HostGraph, total: Any, flag: Any) -> None:
    with graph(made, enable_annotations=True), made.if_else(flag) as (then, other):
        with then:
            DRIVER.memset(total, 1.0)
        with other:
            DRIVER.memset(total, 2.0)


def failing(made: HostGraph, total: Any, flag: Any) -> None:
    with pytest.raises(KeyError), graph(made), made.if_then(flag):
        raise KeyError


# Python drops what is raised while it closes a generator or runs a finaliser, and warns.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("work", [plain, with_bodies, with_annotations, failing])
@pytest.mark.parametrize("enabled", [True, False], ids=["collecting", "not collecting"])
def test_an_interrupt_at_any_moment_leaves_nothing_on(
    work: Callable[[HostGraph, Any, Any], None], enabled: bool
) -> None:
    total, flag = DRIVER.buffer([0.0]), DRIVER.buffer([True], "?")
    DRIVER.buffer([0.0])
    (gc.enable if enabled else gc.disable)()
    try:
        before = surroundings()
        for moment in count(1):
            made, interrupt = HostGraph(), Interrupt(moment)
            with suppress(KeyboardInterrupt), interrupt.armed():
                work(made, total, flag)
            made.close()
            assert surroundings() == before, interrupt.where
            if not interrupt.where:
                break
            if moment % 16 == 0:
                with graph(HostGraph()) as again:
                    DRIVER.memset(total, 3.0)
                again.replay()
                assert total.tolist() == [3.0]
                again.close()
        assert moment > 100
    finally:
        gc.enable()


def test_an_interrupt_at_any_moment_of_a_replay_leaves_the_turn_to_others() -> None:
    total, one = DRIVER.buffer([0.0]), DRIVER.buffer([1.0])

    def add(out: Any, step: Any) -> None:
        out.memory[0] += step.memory[0]

    with graph(HostGraph()) as made:
        DRIVER.launch(add, total, one, writes=(total,))
    with graph(HostGraph(), capture_error_mode="relaxed") as parent:
        made.replay()
        made.replay()
    plan = made.stage([one], [total])
    for run in (made.replay, lambda: plan([one])):
        for moment in count(1):
            interrupt = Interrupt(moment)
            with suppress(KeyboardInterrupt), interrupt.armed():
                run()
            for other in (made.replay, parent.replay):
                thread = threading.Thread(target=other, daemon=True)
                thread.start()
                thread.join(20)
                assert not thread.is_alive(), interrupt.where
            before = total.tolist()
            made.replay()
            assert total.tolist() == [before[0] + 1.0], interrupt.where
            if not interrupt.where:
                break
        assert moment > 1
