"""Conditional nodes of the CUDA driver on a GPU, beyond what the suite asks of every driver."""

import ctypes
from typing import Any

import pytest

from tensorplay_core.errors import (
    ConditionalError,
    OperationRefused,
    UnjoinedWork,
)

pytestmark = pytest.mark.gpu


def test_a_conditional_stands_anywhere_in_a_graph(cuda: Any) -> None:
    """At its beginning, after one node, after two at once: a frontier of 0, 1 and 2."""
    bench = cuda.bench
    left, right, flag = bench.buffer([0.0]), bench.buffer([0.0]), bench.flag(True)
    made = cuda.facade.new()
    with cuda.facade.capture(made):
        with made.if_then(flag):
            bench.add_(left, 1.0)
        with made.if_then(flag):
            bench.add_(right, 1.0)
        side = bench.fork()
        with bench.on(side):
            bench.add_(left, 10.0)
        bench.add_(right, 10.0)
        bench.join(side)
        with made.if_then(flag):
            bench.add_(left, right)
    for value in (True, False):
        bench.write(flag, [float(value)])
        bench.write(left, [0.0])
        bench.write(right, [0.0])
        made.replay()
        assert bench.read(left) == [22.0 if value else 10.0]


def test_work_on_the_parents_stream_while_a_body_is_open_is_refused(cuda: Any) -> None:
    bench, made = cuda.bench, cuda.facade.new()
    total, flag = bench.buffer([0.0]), bench.flag(True)
    with pytest.raises(ConditionalError), cuda.facade.capture(made), made.if_then(flag):
        # The parent's stream, while its body is open.
        root = made._capture
        with bench.on(root.stream):
            bench.add_(total, 1.0)
    made.reset()
    with cuda.facade.capture(made):
        bench.add_(total, 1.0)
    made.replay()
    assert bench.read(total) == [1.0]


def test_a_host_callback_in_a_body_is_named(cuda: Any) -> None:
    bench, made = cuda.bench, cuda.facade.new()
    total, flag = bench.buffer([0.0]), bench.flag(True)
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
    native = cuda.driver.native
    pointer = native.CUhostFn(ctypes.cast(callback, ctypes.c_void_p).value)
    with (
        pytest.raises(OperationRefused) as caught,
        cuda.facade.capture(made, capture_error_mode="relaxed"),
        made.if_then(flag),
    ):
        bench.add_(total, 1.0)
        assert not cuda.native(
            "cuLaunchHostFunc", cuda.driver.handle(None, cuda.device), pointer, 0
        )
    assert "host node" in str(caught.value)
    cuda.works(total)


def test_work_not_joined_in_a_body_is_refused_and_costs_nothing(cuda: Any) -> None:
    bench, made = cuda.bench, cuda.facade.new()
    total, flag = bench.buffer([0.0]), bench.flag(True)
    with pytest.raises(UnjoinedWork), cuda.facade.capture(made), made.if_then(flag):
        bench.add_(total, 1.0)
        side = bench.fork()
        with bench.on(side):
            bench.add_(total, 1.0)
    del side
    made.reset()
    with cuda.facade.capture(made), made.if_then(flag):
        bench.add_(total, 1.0)
    made.replay()
    assert bench.read(total) == [1.0]


def test_a_bounded_loop_needs_no_write_of_its_predicate(cuda: Any) -> None:
    bench, made = cuda.bench, cuda.facade.new()
    total, flag = bench.buffer([0.0]), bench.flag(True)
    with cuda.facade.capture(made), made.while_loop(flag, max_steps=7):
        bench.add_(total, 1.0)
        with made.while_loop(flag, max_steps=2):
            bench.add_(total, 100.0)
    for replays in (1, 2, 3):
        made.replay()
        assert bench.read(total) == [replays * 1407.0]


def test_a_write_to_the_predicate_is_seen_in_nested_bodies(cuda: Any) -> None:
    bench, made = cuda.bench, cuda.facade.new()
    count, flag, always = bench.buffer([0.0]), bench.flag(True), bench.flag(True)
    with cuda.facade.capture(made), made.while_loop(flag):
        bench.add_(count, 1.0)
        with made.if_then(always):
            bench.less_(flag, count, 3.0)
    made.replay()
    assert bench.read(count) == [3.0]


def test_a_copy_to_the_predicate_ends_a_loop(cuda: Any) -> None:
    bench, made = cuda.bench, cuda.facade.new()
    count, flag, low = bench.buffer([0.0]), bench.flag(True), bench.flag(False)
    with cuda.facade.capture(made), made.while_loop(flag):
        bench.add_(count, 1.0)
        cuda.driver.copy(flag, low)
    made.replay()
    assert bench.read(count) == [1.0]
    bench.write(flag, [1.0])
    other = cuda.facade.new()
    with cuda.facade.capture(other), other.while_loop(flag):
        bench.add_(count, 1.0)
        cuda.driver.memset(flag, 0)
    other.replay()
    assert bench.read(count) == [2.0]


def test_a_sixty_four_bit_index_selects(cuda: Any) -> None:
    bench, made = cuda.bench, cuda.facade.new()
    total, index = bench.buffer([0.0]), cuda.driver.buffer([0], "<i8")
    with cuda.facade.capture(made), made.switch(index, 2) as cases:
        for place, case in enumerate(cases):
            with case:
                bench.add_(total, 10.0**place)
    for value in (0, 1, 2, -1, 2**32, 2**32 + 1, -(2**63)):
        cuda.driver.write(index, [value])
        made.replay()
    assert bench.read(total) == [11.0]


@pytest.mark.parametrize("version", [12040, 12080])
def test_an_older_drivers_way_of_if_else_is_the_same(
    cuda: Any, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda.driver, "version", version)
    bench, made = cuda.bench, cuda.facade.new()
    total, flag, done = bench.buffer([0.0]), bench.flag(True), bench.flag(True)
    with cuda.facade.capture(made):
        with made.if_else(flag) as (then, other):
            with then:
                bench.add_(total, 1.0)
                # Both samples come before either body, so this does not run the other, too.
                bench.less_(flag, total, -1.0)
            with other:
                bench.add_(total, 10.0)
                bench.less_(flag, total, 1e9)
        with made.if_then(done):
            pass
        with made.if_else(done) as (_, never), never:
            bench.add_(total, 1000.0)
    assert [node.name for node in made.topology.nodes if node.kind == "conditional"] == ["if"] * 5
    for _ in range(2):
        made.replay()
    assert bench.read(total) == [11.0]
    assert bench.read(flag) == [1.0]
