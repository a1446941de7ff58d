"""The allocator inside pools: best fit by stream, joined again, given back at the very end."""

import gc
import threading
import weakref
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from tensorplay_core.drivers.cuda.arena import ALIGNMENT, GRANULARITY, Arena
from tensorplay_core.errors import PoolExhausted


class Device:
    """Hands out address ranges, and knows which are out."""

    def __init__(self, limit: int = 1 << 40) -> None:
        self.out: dict[int, int] = {}
        self.next, self.limit = 1 << 30, limit

    def grow(self, nbytes: int) -> int:
        if nbytes + sum(self.out.values()) > self.limit:
            raise PoolExhausted(doing="growing", subject="it", met="a limit", remedy="Shrink.")
        address, self.next = self.next, self.next + 2 * nbytes
        self.out[address] = nbytes
        return address

    def shrink(self, address: int, nbytes: int) -> None:
        assert self.out.pop(address) == nbytes


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def arena(device: Device) -> Arena:
    return Arena(device.grow, device.shrink)


def test_sizes_are_rounded_and_segments_shared(arena: Arena, device: Device) -> None:
    blocks = [arena.allocate(size, "s") for size in (0, 1, ALIGNMENT, ALIGNMENT + 1)]
    assert [block.size for block in blocks] == [512, 512, 512, 1024]
    assert [block.address - blocks[0].address for block in blocks] == [0, 512, 1024, 1536]
    assert list(device.out.values()) == [GRANULARITY]
    assert arena.statistics() == (GRANULARITY, 2560, 2560, 4)


def test_what_does_not_fit_gets_a_segment_of_its_own(arena: Arena, device: Device) -> None:
    arena.allocate(1, "s")
    arena.allocate(3 * GRANULARITY + 1, "s")
    assert list(device.out.values()) == [GRANULARITY, 4 * GRANULARITY]


def test_a_freed_block_serves_its_stream_and_no_other(arena: Arena) -> None:
    first = arena.allocate(1024, "a")
    address = first.address
    arena.give(first)
    assert arena.allocate(1024, "b").address != address
    assert arena.allocate(1024, "a").address == address


def test_the_best_fit_is_taken(arena: Arena) -> None:
    sizes = (4096, 512, 1024, 512, 2048, 512)
    blocks = [arena.allocate(size, "s") for size in sizes]
    small, large = blocks[2].address, blocks[4].address
    for place in (0, 2, 4):
        arena.give(blocks[place])
    assert arena.allocate(1000, "s").address == small
    assert arena.allocate(1500, "s").address == large


def test_neighbours_join_again(arena: Arena, device: Device) -> None:
    blocks = [arena.allocate(GRANULARITY // 4, "s") for _ in range(4)]
    for place in (1, 3, 0, 2):
        arena.give(blocks[place])
    assert arena.allocate(GRANULARITY, "s").address == blocks[0].address
    assert len(device.out) == 1


def test_statistics_follow_and_the_peak_stays(arena: Arena) -> None:
    blocks = [arena.allocate(512, "s") for _ in range(3)]
    arena.give(blocks.pop())
    assert arena.statistics() == (GRANULARITY, 1024, 1536, 2)


def test_a_body_takes_what_was_free_before_it_and_nothing_freed_meanwhile(arena: Arena) -> None:
    outer, free = arena.allocate(GRANULARITY // 2, "p"), arena.allocate(GRANULARITY // 2, "p")
    spot = free.address
    arena.give(free)
    arena.lend("p", "body")
    assert arena.allocate(512, "body").address == spot
    # The parent's memory, let go while the body is captured: the body's next run may read it.
    arena.give(outer)
    assert arena.allocate(GRANULARITY // 2, "body").address not in (outer.address, spot)


def test_what_a_body_leaves_is_its_parents_whenever_it_is_freed(arena: Arena) -> None:
    arena.lend("p", "body")
    early, late = arena.allocate(GRANULARITY // 2, "body"), arena.allocate(512, "body")
    arena.give(early)
    arena.fold("body", "p")
    assert arena.allocate(GRANULARITY // 2, "p").address == early.address
    arena.give(late)
    assert arena.allocate(512, "p").address == late.address


def test_bodies_fold_into_bodies(arena: Arena) -> None:
    deep = arena.allocate(512, "inner")
    arena.fold("inner", "outer")
    arena.fold("outer", "p")
    arena.give(deep)
    assert arena.allocate(512, "p").address == deep.address


def test_the_next_capture_has_all_that_is_free(arena: Arena, device: Device) -> None:
    blocks = [arena.allocate(GRANULARITY // 4, key) for key in "abcd"]
    kept = blocks[0]
    for block in blocks[1:]:
        arena.give(block)
    assert len(device.out) == 4
    arena.unite("next")
    for _ in range(3):
        arena.allocate(GRANULARITY, "next")
    assert len(device.out) == 4
    arena.give(kept)
    assert arena.allocate(GRANULARITY, "next").address == kept.address


def test_memory_goes_back_when_released_and_unused(arena: Arena, device: Device) -> None:
    kept, gone = arena.allocate(512, "a"), arena.allocate(GRANULARITY, "b")
    arena.give(gone)
    assert len(device.out) == 2
    arena.release()
    assert len(device.out) == 1
    arena.give(kept)
    assert device.out == {}
    assert arena.statistics()[:2] == (0, 0)


def test_memory_left_in_pieces_by_bodies_goes_back_too(arena: Arena, device: Device) -> None:
    block = arena.allocate(512, "p")
    arena.lend("p", "body")
    arena.give(block)
    arena.release()
    assert device.out == {}


def test_a_revived_arena_keeps_its_memory(arena: Arena, device: Device) -> None:
    kept = arena.allocate(512, "s")
    arena.release()
    arena.revive()
    arena.give(kept)
    assert len(device.out) == 1
    assert arena.allocate(GRANULARITY, "s").address == kept.address


def test_nothing_changes_when_the_device_has_no_memory(device: Device) -> None:
    device.limit = GRANULARITY
    arena = Arena(device.grow, device.shrink)
    arena.allocate(512, "s")
    before = arena.statistics()
    with pytest.raises(PoolExhausted):
        arena.allocate(GRANULARITY, "s")
    assert arena.statistics() == before
    assert arena.allocate(GRANULARITY - 512, "s").size == GRANULARITY - 512


def test_a_block_given_back_inside_an_allocation_is_not_lost(device: Device) -> None:
    class Holder:
        """A finalizer that runs when the arena asks for memory."""

    arena = Arena(lambda nbytes: collect(nbytes), device.shrink)
    block = None
    holder: Any = Holder()
    holder.itself = holder

    def collect(nbytes: int) -> int:
        if block is not None:
            gc.collect()
        return device.grow(nbytes)

    block = arena.allocate(GRANULARITY, "s")
    weakref.finalize(holder, arena.give, block)
    del holder
    arena.allocate(GRANULARITY, "s")
    assert arena.statistics().allocation_count == 1
    assert arena.allocate(GRANULARITY, "s").address == block.address


def test_threads_allocate_and_free_at_once(arena: Arena) -> None:
    failed: list[BaseException] = []

    def churn(key: str) -> None:
        try:
            for _ in range(200):
                for block in [arena.allocate(700, key) for _ in range(5)]:
                    arena.give(block)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=churn, args=(key,)) for key in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert arena.statistics().allocation_count == 0


class Arenas(RuleBasedStateMachine):
    """No two blocks that are out overlap, whatever is lent, folded, united and released."""

    blocks = Bundle("blocks")

    def __init__(self) -> None:
        super().__init__()
        self.device = Device()
        self.arena = Arena(self.device.grow, self.device.shrink)
        self.out: dict[int, Any] = {}
        self.bodies: list[tuple[str, str]] = []

    @property
    def here(self) -> str:
        return self.bodies[-1][1] if self.bodies else "p"

    @rule(target=blocks, nbytes=st.integers(0, 3 * GRANULARITY), fork=st.booleans())
    def allocate(self, nbytes: int, fork: bool) -> Any:
        self.arena.revive()
        block = self.arena.allocate(nbytes, "fork" if fork else self.here)
        assert block.size >= nbytes
        for other in self.out.values():
            apart = (
                block.address + block.size <= other.address
                or other.address + other.size <= block.address
            )
            assert apart
        assert any(
            start <= block.address and block.address + block.size <= start + size
            for start, size in self.device.out.items()
        )
        assert block.address not in self.out
        self.out[block.address] = block
        return block

    @rule(block=consumes(blocks))
    def free(self, block: Any) -> Any:
        del self.out[block.address]
        self.arena.give(block)

    @rule()
    def enter(self) -> Any:
        body = f"body {len(self.bodies)} {self.device.next}"
        self.arena.lend(self.here, body)
        self.bodies.append((self.here, body))

    @rule()
    def leave(self) -> Any:
        if self.bodies:
            parent, body = self.bodies.pop()
            self.arena.fold(body, parent)

    @rule()
    def next_capture(self) -> Any:
        self.bodies.clear()
        self.arena.unite("p")

    @rule(target=blocks)
    def release(self) -> Any:
        self.arena.release()
        if not self.out:
            assert self.device.out == {}
        return multiple()

    @invariant()
    def counts_are_true(self) -> None:
        told = self.arena.statistics()
        assert told.allocation_count == len(self.out)
        assert told.allocated_bytes == sum(block.size for block in self.out.values())
        assert told.reserved_bytes == sum(self.device.out.values())


TestArenas = Arenas.TestCase
