"""The PTX that the CUDA driver ships, run instruction by instruction."""

import importlib.util
import random
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorplay_core.drivers.cuda import kernels
from tensorplay_core.drivers.cuda.workbench import work_ptx


def _machine() -> Any:
    spec = importlib.util.spec_from_file_location(
        "ptx_machine", Path(__file__).with_name("ptx_machine.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


ptx = _machine()
PREDICATES = ptx.load(kernels.predicate_ptx())
COPIES = ptx.load(kernels.copy_ptx())
WORK = ptx.load(work_ptx())
ONE = (1, 1, 1)


class Conditions:
    """What ``cudaGraphSetConditional`` was told."""

    def __init__(self) -> None:
        self.set: dict[int, int] = {}

    def __call__(self, name: str, handle: int, value: int) -> None:
        assert name == "cudaGraphSetConditional"
        self.set[handle] = value


def condition(
    held: int, options: int = 0, *, counter: int | None = None, limit: int = 0
) -> tuple[int, int | None]:
    """The value set from a Bool byte, and the counter afterwards."""
    memory, told = ptx.Bytes(64), Conditions()
    memory.write(memory.base, bytes([held]))
    if counter is not None:
        memory.write(memory.base + 8, struct.pack("<Q", counter))
    place = memory.base + 8 if counter is not None else 0
    packed = struct.pack("<QQQQI", 77, memory.base, place, limit, options)
    PREDICATES["tensorplay_set_condition"].launch(ONE, ONE, packed, memory, told)
    after = struct.unpack("<Q", memory.read(memory.base + 8, 8))[0]
    return told.set[77], after if counter is not None else None


@pytest.mark.parametrize("held", [0, 1, 2, 255])
def test_a_condition_is_whether_the_byte_is_zero(held: int) -> None:
    assert condition(held) == (int(held != 0), None)
    assert condition(held, kernels.NEGATE) == (int(held == 0), None)
    assert condition(held, kernels.ALWAYS) == (1, None)


@pytest.mark.parametrize("held", [0, 1, 2, 255])
def test_the_plain_setter_says_the_same(held: int) -> None:
    memory, told = ptx.Bytes(64), Conditions()
    memory.write(memory.base, bytes([held]))
    packed = struct.pack("<QQ", 77, memory.base)
    PREDICATES["tensorplay_set_plain"].launch(ONE, ONE, packed, memory, told)
    assert told.set[77] == condition(held)[0]


def test_without_a_bound_no_counter_is_touched() -> None:
    assert condition(1, kernels.RESTART) == (1, None)
    assert condition(0, kernels.RESTART) == (0, None)


@pytest.mark.parametrize("held", [0, 1])
@pytest.mark.parametrize(("counter", "limit"), [(0, 1), (1, 1), (2, 5), (5, 5), (6, 5), (0, 0)])
def test_a_bounded_condition_falls_at_its_limit(held: int, counter: int, limit: int) -> None:
    bounded = kernels.COUNTED
    runs = int(bool(held) and counter < limit)
    assert condition(held, bounded, counter=counter, limit=limit) == (runs, counter)


@pytest.mark.parametrize("counter", [0, 3, 2**63])
def test_a_restart_forgets_the_runs_of_the_last_replay(counter: int) -> None:
    options = kernels.COUNTED | kernels.RESTART
    assert condition(1, options, counter=counter, limit=2) == (1, 0)
    assert condition(0, options, counter=counter, limit=2) == (0, 0)
    assert condition(0, options | kernels.ALWAYS, counter=counter, limit=2) == (1, 0)
    assert condition(0, options | kernels.ALWAYS, counter=counter, limit=0) == (0, 0)


def test_limits_are_wider_than_thirty_two_bits() -> None:
    limit = 2**40
    assert condition(1, kernels.COUNTED, counter=limit - 1, limit=limit) == (1, limit - 1)
    assert condition(1, kernels.COUNTED, counter=limit, limit=limit) == (0, limit)


def test_a_step_is_counted() -> None:
    memory = ptx.Bytes(16)
    for count in range(1, 4):
        PREDICATES["tensorplay_count_step"].launch(
            ONE, ONE, struct.pack("<Q", memory.base + 8), memory
        )
        assert memory.read(memory.base + 8, 8) == struct.pack("<Q", count)
    assert memory.read(memory.base, 8) == bytes(8)


@pytest.mark.parametrize(
    ("bits", "code", "values"),
    [
        (32, "<i", [0, 1, 7, -1, -(2**31), 2**31 - 1]),
        (64, "<q", [0, 1, 7, -1, -(2**31), 2**31 - 1, 2**31, 2**32, 2**32 + 1, 2**63 - 1]),
    ],
)
def test_an_index_that_is_negative_or_too_wide_selects_nothing(
    bits: int, code: str, values: list[int]
) -> None:
    for value in values:
        memory, told = ptx.Bytes(16), Conditions()
        memory.write(memory.base, struct.pack(code, value))
        PREDICATES[f"tensorplay_set_index{bits}"].launch(
            ONE, ONE, struct.pack("<QQ", 5, memory.base), memory, told
        )
        assert told.set[5] == (value if 0 <= value < 2**31 else 2**32 - 1)


def copy(
    entries: list[tuple[int, int, int]], memory: Any, *, capacity: int, blocks: int, threads: int
) -> None:
    table = [[0] * capacity for _ in range(3)]
    for place, entry in enumerate(entries):
        for column, value in zip(table, entry, strict=True):
            column[place] = value
    packed = struct.pack(f"<{3 * capacity}Q", *table[0], *table[1], *table[2])
    grid, block = (blocks, max(1, len(entries)), 1), (threads, 1, 1)
    COPIES[kernels.copy_name(capacity)].launch(grid, block, packed, memory)


def through_memory(
    entries: list[tuple[int, int, int]], memory: Any, *, table: int, blocks: int, threads: int
) -> None:
    columns = [value for column in zip(*entries, strict=True) for value in column]
    for place, value in enumerate(columns):
        memory.write(table + 8 * place, struct.pack("<Q", value))
    COPIES["tensorplay_copy_table"].launch(
        (blocks, len(entries), 1), (threads, 1, 1), struct.pack("<QQ", table, len(entries)), memory
    )


@given(
    sizes=st.lists(st.integers(0, 70), min_size=1, max_size=4),
    shifts=st.lists(st.tuples(st.integers(0, 17), st.integers(0, 17)), min_size=4, max_size=4),
    blocks=st.integers(1, 3),
    threads=st.integers(1, 5),
    indirect=st.booleans(),
)
def test_a_copy_moves_every_byte_and_no_other(
    sizes: list[int],
    shifts: list[tuple[int, int]],
    blocks: int,
    threads: int,
    indirect: bool,
) -> None:
    memory = ptx.Bytes(2048)
    content = random.Random(0).randbytes(1024)
    memory.data[:1024] = content
    entries, expected = [], bytearray(memory.data)
    for place, (size, (left, right)) in enumerate(zip(sizes, shifts, strict=False)):
        source, target = 100 * place + left, 1024 + 100 * place + right
        entries.append((memory.base + source, memory.base + target, size))
        expected[target : target + size] = content[source : source + size]
    if indirect:
        table = memory.base + 1800
        through_memory(entries, memory, table=table, blocks=blocks, threads=threads)
        expected[1800:] = memory.data[1800:]
    else:
        copy(entries, memory, capacity=4, blocks=blocks, threads=threads)
    assert memory.data == expected


@pytest.mark.parametrize("capacity", kernels.COPY_CAPACITIES)
def test_every_capacity_reads_its_own_table(capacity: int) -> None:
    memory = ptx.Bytes(64 * capacity)
    entries = [
        (memory.base + 16 * place, memory.base + 32 * capacity + 16 * place, 16)
        for place in range(capacity)
    ]
    memory.data[: 16 * capacity] = bytes(place % 251 for place in range(16 * capacity))
    copy(entries, memory, capacity=capacity, blocks=1, threads=1)
    assert memory.data[32 * capacity : 48 * capacity] == memory.data[: 16 * capacity]


def test_a_copy_onto_itself_changes_nothing() -> None:
    memory = ptx.Bytes(64)
    memory.data[:] = bytes(range(64))
    copy([(memory.base, memory.base, 61)], memory, capacity=4, blocks=1, threads=4)
    assert memory.data == bytes(range(64))


def test_a_stored_entry_stores_its_source_once() -> None:
    memory = ptx.Bytes(64)
    entries = [(memory.base, memory.base + 32, 8), (2**63 + 5, memory.base + 48, kernels.STORE)]
    memory.write(memory.base, b"original")
    copy(entries, memory, capacity=4, blocks=2, threads=3)
    assert memory.read(memory.base + 32, 8) == b"original"
    assert memory.read(memory.base + 48, 8) == struct.pack("<Q", 2**63 + 5)


class Sparse:
    """Memory of any size, of which only what is written exists; the rest reads as zeros."""

    def __init__(self) -> None:
        self.written: dict[int, bytes] = {}

    def read(self, address: int, size: int) -> bytes:
        return address.to_bytes(8, "little")[:1] * size

    def write(self, address: int, data: bytes) -> None:
        self.written[address] = data


def test_sizes_beyond_thirty_two_bits_are_copied_to_their_end() -> None:
    # The last thread of a grid so wide that it has one step to do, at the end of 6 GiB and a bit.
    size, threads = 6 * 2**30 + 21, 1024
    vectors = size // 16
    blocks = -(-vectors // threads)
    memory = Sparse()
    kernel = COPIES[kernels.copy_name(4)]
    source, target = 1 << 44, 1 << 45
    packed = struct.pack("<12Q", source, 0, 0, 0, target, 0, 0, 0, size, 0, 0, 0)
    last = (vectors - 1) % threads
    kernel.thread(packed, memory, None, last, threads, blocks - 1, 0, blocks)
    assert set(memory.written) == {target + 16 * (vectors - 1)}
    memory.written.clear()
    # Bytes that fill no vector are the first threads' work.
    for thread in range(6):
        kernel.thread(packed, memory, None, thread, threads, 0, 0, blocks)
    tail = {address for address, data in memory.written.items() if len(data) == 1}
    assert tail == {target + 16 * vectors + place for place in range(5)}


def test_tables_fit_into_the_parameters_of_a_kernel() -> None:
    for capacity in kernels.COPY_CAPACITIES:
        ((offset, size),) = COPIES[kernels.copy_name(capacity)].parameters.values()
        assert (offset, size) == (0, 24 * capacity)
        assert size <= 4096


@pytest.mark.parametrize(
    ("entries", "capacity"), [(0, 4), (1, 4), (4, 4), (5, 16), (17, 64), (65, 160), (160, 160)]
)
def test_the_smallest_capacity_that_holds_is_taken(entries: int, capacity: int) -> None:
    assert kernels.copy_capacity(entries) == capacity


def test_nothing_newer_than_the_oldest_gpu_is_asked_for() -> None:
    for image in (kernels.predicate_ptx(), kernels.copy_ptx(), work_ptx()):
        text = image.decode("ascii")
        assert text.startswith(".version 6.0\n.target sm_50\n.address_size 64\n")
        assert text.count("{") == text.count("}")
    # A builtin of the driver: declared, defined nowhere, resolved when the module is loaded.
    declared = kernels.predicate_ptx().decode()
    assert ".extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);" in (
        declared
    )


def floats(memory: Any, start: int, count: int) -> list[float]:
    return list(
        struct.unpack(
            f"<{count}f",
            b"".join(memory.read(memory.base + start + 4 * place, 4) for place in range(count)),
        )
    )


def test_the_workbench_adds_doubles_and_compares_in_float32() -> None:
    memory = ptx.Bytes(256)
    base, grid, block = memory.base, (2, 1, 1), (2, 1, 1)
    for place, value in enumerate([0.1, 1.0, -2.0, 0.2, 5.0, 7.0]):
        memory.write(base + 4 * place, struct.pack("<f", value))
    WORK["add_array"].launch(grid, block, struct.pack("<QQI", base, base + 12, 3), memory)
    assert floats(memory, 0, 3) == [pytest.approx(0.3), 6.0, 5.0]
    assert floats(memory, 0, 1) == [0.30000001192092896]
    WORK["add_number"].launch(grid, block, struct.pack("<QfI", base, 0.5, 3), memory)
    assert floats(memory, 1 * 4, 2) == [6.5, 5.5]
    WORK["double"].launch(grid, block, struct.pack("<QQI", base + 64, base, 3), memory)
    assert floats(memory, 68, 2) == [13.0, 11.0]
    assert floats(memory, 76, 1) == [0.0]
    for first, second in ((1.0, 2.0), (2.0, 1.0), (1.0, 1.0)):
        memory.write(base + 128, struct.pack("<f", first))
        memory.write(base + 132, struct.pack("<f", second))
        packed = struct.pack("<QQQI", base + 140, base + 128, base + 132, 1)
        WORK["less_array"].launch(ONE, ONE, packed, memory)
        number = struct.pack("<QQfI", base + 141, base + 128, second, 1)
        WORK["less_number"].launch(ONE, ONE, number, memory)
        assert memory.read(base + 140, 1) == memory.read(base + 141, 1) == bytes([first < second])
