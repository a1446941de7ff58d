"""Threads capture into shared pools, replay, break and drop at once: nothing mixes or leaks."""

import gc
import random
import struct
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tensorplay_core.errors import CaptureInvalidated, OperationRefused
from tensorplay_core.protocols import CaptureOptions

THREADS, ROUNDS = 4, 40


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def float32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def add_one(out: Any, source: Any) -> None:
    for index in range(len(out)):
        out.memory[index] = source.memory[index] + 1


class Worker(threading.Thread):
    """Captures chains of additions and compares what their replays give."""

    def __init__(self, host: Any, pools: list[Any], seed: int) -> None:
        super().__init__()
        self.host, self.pools, self.random = host, pools, random.Random(seed)
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for _ in range(ROUNDS):
                self.round()
        except BaseException as error:
            self.error = error

    def round(self) -> None:
        driver, runtime, draw = self.host.driver, self.host.runtime, self.random
        source, length = driver.buffer([0.0] * 8), draw.randint(1, 6)
        capture = runtime.graph_begin(
            "host", driver.stream(), draw.choice(self.pools), "thread_local", CaptureOptions()
        )
        current = source
        for _ in range(length):
            following = driver.buffer(8)
            driver.launch(add_one, following, current, writes=(following,))
            current = following
            if draw.random() < 0.3:  # Garbage that only a collection finds, in whatever thread.
                cycle = [following]
                cycle.append(cycle)
        if draw.random() < 0.2:
            with pytest.raises(OperationRefused):
                driver.synchronize()
            with pytest.raises(CaptureInvalidated):
                runtime.graph_end(capture)
            return
        template = runtime.graph_end(capture)
        executable = runtime.graph_instantiate(template)
        template.close()
        plan = runtime.stage(executable, [source], [current])
        for _ in range(draw.randint(1, 5)):
            value = expected = float32(draw.random())
            for _ in range(length):
                expected = float32(expected + 1)
            (result,) = plan([driver.buffer([value] * 8)])
            assert result.tolist() == [expected] * 8
        executable.close()


def test_threads_that_share_pools_neither_mix_nor_leak(host: Any) -> None:
    pools = [host.runtime.pool_create("host") for _ in range(2)]
    workers = [Worker(host, pools, seed) for seed in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for worker in workers:
        if worker.error is not None:
            raise worker.error
    workers.clear()
    gc.collect()
    for pool in pools:
        assert host.runtime.pool_statistics(pool).allocation_count == 0
        host.runtime.pool_release(pool)
    assert host.driver.held_bytes == 0
