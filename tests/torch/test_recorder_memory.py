"""Memory of CPU captures: what is kept, what is reused, and what is known to have died."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from tensorplay_core.protocols import CaptureOptions
from tensorplay_torch.resources.arena import Arena
from tensorplay_torch.resources.storages import Aliases, Watched

WATCH = CaptureOptions(check_input_liveness=True)
SIZE = 1024


def arena() -> Arena:
    return Arena(reuse_from=1)


def chain(x: torch.Tensor, length: int = 10) -> torch.Tensor:
    for _ in range(length):
        x = x + 1
    return x


def test_memory_of_dead_intermediates_is_used_again(record):
    x, pool = torch.randn(SIZE), arena()
    captured = record(lambda: chain(x), arena=pool)
    assert len(pool.reserved) == 2  # One to read, one to write.
    assert pool.allocated == [4 * SIZE]
    for _ in range(3):
        x.normal_()
        captured.replay()
        assert torch.equal(captured.result, chain(x))


@pytest.mark.parametrize("keeper", ["a tensor", "a view", "autograd", "a storage", "a container"])
def test_memory_that_somebody_can_reach_is_not(record, keeper):
    x, kept = torch.randn(SIZE, requires_grad=True), []

    def body():
        with torch.set_grad_enabled(keeper == "autograd"):
            y = x * 2
            match keeper:
                case "a tensor":
                    kept.append(y.detach())
                case "a view":
                    kept.append(y[3:5])
                case "autograd":
                    kept.append(y * y)
                case "a storage":
                    kept.append(y.untyped_storage())
                case "a container":
                    kept.append({"deep": (y,)})
        del y
        return chain(x.detach())

    captured = record(body, arena=arena())
    captured.replay()
    twice = 2 * x.detach()
    match keeper:
        case "a tensor":
            assert torch.equal(kept[0], twice)
        case "a view":
            assert torch.equal(kept[0], twice[3:5])
        case "autograd":
            (grad,) = torch.autograd.grad(kept[0].sum(), x)
            assert torch.equal(grad, 4 * twice)
        case "a storage":
            whole = torch.empty(0).set_(kept[0])
            assert torch.equal(whole, twice)
        case "a container":
            assert torch.equal(kept[0]["deep"][0], twice)
    assert torch.equal(captured.result, chain(x.detach()))


def test_small_tensors_are_not_worth_it(record):
    pool = Arena()
    record(lambda: chain(torch.ones(4)), arena=pool)
    assert len(pool._storages) == 11


def test_the_body_of_a_loop_leaves_memory_from_before_it_alone(record):
    x, pool = torch.randn(SIZE), arena()

    class Looped(record):
        def submit(self, work, **facts):
            super().submit(work, **facts)
            self.inside = getattr(self, "inside", [])
            self.inside.append(getattr(self, "in_body", False))

        def body(self):
            y = x * 2
            with self.recorder.body():
                self.in_body = True
                total.add_(y)
                y = None
                chain(x)
                self.in_body = False

        def _run(self, stream):
            repeated = [w for w, inside in zip(self.works, self.inside, strict=True) if inside]
            first = [w for w, inside in zip(self.works, self.inside, strict=True) if not inside]
            for work in (*first, *repeated, *repeated, *repeated):
                work()

    total = torch.zeros(SIZE)
    captured = Looped.__new__(Looped)
    captured.__init__(lambda: captured.body(), arena=pool)
    captured.replay()
    assert torch.equal(total, 6 * x)


def test_graphs_that_share_an_arena_share_its_memory(record):
    x, y, pool = torch.randn(SIZE), torch.randn(SIZE), arena()
    first = record(lambda: chain(x), arena=pool)
    assert len(pool.reserved) == 2
    second = record(lambda: chain(y), arena=pool)
    assert len(pool.reserved) == 3  # The first result lives, the rest is shared.
    for captured, expected in ((first, chain(x)), (second, chain(y))):
        captured.replay()
        assert torch.equal(captured.result, expected)
    assert torch.equal(first.result, chain(x))


def test_memory_is_back_when_the_last_graph_and_the_last_tensor_are_gone(record):
    x, pool = torch.randn(SIZE), arena()
    captured = record(lambda: chain(x), arena=pool)
    result = captured.result
    assert sum(pool.reserved) == 2 * 4 * SIZE
    del captured
    gc.collect()
    assert pool.reserved == [4 * SIZE]
    del result
    assert pool.reserved == []


def test_a_graph_keeps_what_it_reads_and_not_what_dies_inside(record):
    x = torch.randn(SIZE)
    expected = x * 2 + 1
    seen = weakref.ref(x)
    captured = record(lambda x: (x.view(32, 32) * 2 + 1).view(-1), x)
    del x
    gc.collect()
    assert seen() is None
    torch.randn(SIZE)  # Takes the memory, if that was given back.
    captured.replay()
    assert torch.equal(captured.result, expected)
    assert len(captured.recorder.operands.retained) == 1


@pytest.mark.parametrize("kind", ["input", "view", "parameter", "written"])
def test_inputs_that_die_are_named(record, kind):
    owners = {
        "input": torch.randn(3, 2),
        "view": torch.randn(6, 2)[3:],
        "parameter": torch.nn.Parameter(torch.randn(3, 2)),
        "written": torch.randn(3, 2),
    }
    alive = torch.randn(3, 2)
    x = owners[kind]

    def work(x):
        with torch.no_grad():  # Else the result's history would keep the parameter.
            return x.detach().add_(alive) if kind == "written" else x * alive

    captured = record(work, x, options=WATCH)
    operands = captured.recorder.operands
    assert operands.dead() == ()
    if kind == "written":
        del captured.result
    owners.clear()
    del x
    gc.collect()
    (dead,) = operands.dead()
    assert "(3, 2)" in dead
    assert "float32 on cpu" in dead
    assert f"{__file__}:" in dead
    assert not operands.retained


def test_writes_are_seen_by_the_memory_they_touch(record):
    flag, other = torch.zeros(4, dtype=torch.bool), torch.zeros(4)
    marks = []

    def body(recorder):
        operands = recorder.operands
        marks.append(operands.mark())
        other.add_(1)
        assert not operands.writes_to(flag, since=marks[0])
        marks.append(operands.mark())
        torch.less(other[1:], 3, out=flag[1:])
        assert operands.writes_to(flag, since=marks[1])
        assert operands.writes_to(flag.view(2, 2), since=marks[0])
        marks.append(operands.mark())
        assert not operands.writes_to(flag, since=marks[2])
        assert not operands.writes_to(other, since=marks[1])
        born = other * 2
        assert operands.writes_to(born, since=marks[2])
        assert operands.is_born(born[0])
        assert not operands.is_born(other)

    class Own(record):
        def __init__(self):
            super().__init__(lambda: body(self.recorder))

    Own()
    assert len(marks) == 3


def test_a_reader_reads_at_the_replay(record):
    x, readers = torch.zeros(()), []

    class Own(record):
        def __init__(self):
            super().__init__(lambda: readers.append(self.recorder.reader(x.add_(1) > 1)))

    captured = Own()
    seen = []
    captured.works.append(lambda: seen.append(readers[0]()))
    captured.replay()
    captured.replay()
    assert seen == [False, True]


@pytest.mark.parametrize("where", ["at once", "later", "in a view", "in a loop", "never"])
def test_constants_begin_anew_at_each_replay(record, where):
    class Own(record):
        def body(self):
            constant = torch.tensor([1.0, 2.0])
            other = torch.tensor([5.0, 5.0])
            before = constant * 1
            match where:
                case "at once":
                    constant.add_(1)
                case "later":
                    other.mul_(2)
                    constant.add_(other)
                case "in a view":
                    constant[0].add_(3)
                case "in a loop":
                    with self.recorder.body():
                        inner = torch.tensor([0.0, 1.0])
                        inner.add_(1)
                        constant.add_(inner)
            return before, constant

    captured = Own.__new__(Own)
    captured.__init__(lambda: captured.body())
    expected = {
        "at once": [2, 3],
        "later": [11, 12],
        "in a view": [4, 2],
        "in a loop": [2, 4],
        "never": [1, 2],
    }
    for _ in range(3):
        captured.replay()
        before, constant = captured.result
        assert before.tolist() == [1, 2]
        assert constant.tolist() == expected[where]


def test_references_are_told_apart():
    tensor = torch.ones(4)
    watched, aliases = Watched(tensor), Aliases()
    assert watched.used_beside(0)
    assert not watched.used_beside(1)
    alias = tensor.detach()
    aliases.note(alias)
    assert watched.used_beside(aliases.count(watched.key))
    del tensor
    assert not watched.used_beside(aliases.count(watched.key))
    storage = alias.untyped_storage()
    assert watched.used_beside(aliases.count(watched.key))
    del storage
    assert watched.nbytes == 16
    del alias
    assert aliases.count(watched.key) == 0
    assert watched.storage() is None
    assert not watched.used_beside(0)
