"""What is remembered of pools that ended does not grow with their number."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from tensorplay_torch.resources.ids import Gone, Ranges
from tensorplay_torch.resources.pools import PoolRegistry


@given(st.lists(st.integers(0, 40)))
def test_ranges_are_a_set(numbers):
    ranges = Ranges()
    for n, number in enumerate(numbers):
        ranges.add(number)
        assert list(ranges) == sorted(set(numbers[: n + 1]))
    assert [number in ranges for number in range(-1, 42)] == [
        number in numbers for number in range(-1, 42)
    ]
    assert ranges.count == sum(number - 1 not in numbers for number in set(numbers))


def test_ids_of_every_kind_are_told_apart():
    gone = Gone()
    for id in ((0, 3), (4, 0), ("cpu", 3)):
        assert id not in gone
        gone.add(id)
        assert id in gone
    gone.add("an id of another form")
    assert all(id not in gone for id in ((3, 0), (0, 4), ("cpu", 4), (3, 3), 3, "cpu", None))
    assert "an id of another form" not in gone


def test_pools_that_ended_leave_nothing(monkeypatch):
    numbers = iter(range(1, 10**6))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, next(numbers)))
    registry = PoolRegistry()
    for device in (torch.device("cuda", 0), torch.device("cpu")):
        for n in range(300):
            pool = registry.create(device)
            pool.used = bool(n % 3)
            if device.type == "cuda" and n % 2:
                assert pool.draw() != pool.draw()
            registry.forget(pool)
            del pool
    assert sum(gone.count for gone in registry._gone.values()) == 2
    assert len(registry._pools) == 0
    again = registry.resolve((0, 2), torch.device("cuda", 0))
    assert again.id == (0, 2)
