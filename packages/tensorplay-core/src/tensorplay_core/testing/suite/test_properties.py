"""The laws of any program: replay is eager, capture changes nothing, failure leaves no trace."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from tensorplay_core.errors import CaptureError
from tensorplay_core.testing.facade import Facade
from tensorplay_core.testing.interpreter import bits
from tensorplay_core.testing.oracle import FORMS, Recording, churn
from tensorplay_core.testing.programs import Illegal, Program, Raise
from tensorplay_core.testing.strategies import (
    Call,
    Churn,
    Recapture,
    broken,
    call_patterns,
    inputs,
    programs,
)
from tensorplay_core.testing.workbench import Workbench

from .checks import four_parts, unchanged

pytestmark = pytest.mark.usefixtures("frozen_heap")


def _conditionals(bench: Workbench) -> bool:
    return bench.runtime.can("conditional_open")


def _run(bench: Workbench, recordings: Sequence[Recording], calls: Sequence[Call]) -> None:
    """Calls as the pattern says; after each replay the graph's bytes are eager's."""
    for call in calls:
        note(str(call))
        if isinstance(call, Churn):
            churn(bench)
            continue
        recording = recordings[call.which]
        if isinstance(call, Recapture):
            recording.graph.reset()
            recording.capture()
            continue
        if call.inputs is not None:
            recording.feed(call.inputs)
        recording.replay(bench.stream() if call.explicit_stream else None)
        assert recording.differences() == {}


@given(data=st.data())
def test_replay_equals_eager(workbench: Workbench, data: st.DataObject) -> None:
    program = data.draw(programs(conditionals=_conditionals(workbench)))
    forms = sorted(FORMS) if _conditionals(workbench) else ["nodes"]
    recording = Recording(workbench, program, form=data.draw(st.sampled_from(forms)))
    recording.capture()
    _run(workbench, [recording], data.draw(call_patterns([program])))
    recording.close()


@given(data=st.data())
def test_graphs_that_share_a_pool_equal_eager(
    workbench: Workbench, facade: Facade, data: st.DataObject
) -> None:
    several = data.draw(
        st.lists(
            programs(conditionals=_conditionals(workbench), depth=2, size=4),
            min_size=2,
            max_size=3,
        )
    )
    pool = facade.pool() if workbench.runtime.can("pool_create") else None
    recordings = [Recording(workbench, program, pool=pool) for program in several]
    for recording in recordings:
        recording.capture()
    # A later capture may use what an earlier one dropped, so a result is looked at after its own
    # graph's replay. To capture one again takes the place of none of the others.
    _run(workbench, recordings, data.draw(call_patterns(several, recapture=False)))
    for recording in data.draw(st.permutations(recordings)):
        recording.close()


@given(data=st.data())
def test_a_capture_changes_nothing(
    workbench: Workbench, facade: Facade, data: st.DataObject
) -> None:
    program = data.draw(programs(conditionals=_conditionals(workbench)))
    recording = Recording(workbench, program)
    recording.feed(data.draw(inputs(program)))
    # What the capture bears holds nothing before a replay.
    before, bytes_before = recording.static.read(results=False), workbench.live_bytes()
    collecting, was = data.draw(st.booleans()), gc.isenabled()
    (gc.enable if collecting else gc.disable)()
    try:
        with unchanged(facade):
            recording.capture()
        assert recording.static.read(results=False) == before
        recording.graph.reset()
        recording.static.results.clear()
        assert workbench.live_bytes() == bytes_before
    finally:
        (gc.enable if was else gc.disable)()
        recording.close()


@given(data=st.data())
def test_a_graph_owns_what_it_reads(workbench: Workbench, data: st.DataObject) -> None:
    program = data.draw(programs(conditionals=_conditionals(workbench)))
    fresh = data.draw(inputs(program))
    recording = Recording(workbench, program)
    recording.feed(fresh)
    recording.capture()
    # Of all that the graph reads, only what is looked at in the end stays referred to here.
    looked_at = data.draw(st.sampled_from(program.registers))
    kept = {looked_at: recording.static.buffers[looked_at]}
    recording.static.buffers, recording.static.results = kept, {}
    recording.static.zero = None
    gc.collect()
    churn(workbench, program.length)
    churn(workbench, 1)
    recording.replay()
    assert recording.static.read()[looked_at] == recording.mirror.read()[looked_at]
    recording.close()


@given(data=st.data())
def test_a_failure_leaves_no_trace(
    workbench: Workbench, facade: Facade, data: st.DataObject
) -> None:
    program = data.draw(programs(conditionals=_conditionals(workbench)))
    error = KeyError("the user's own")
    failure: Raise | Illegal = Raise(error) if data.draw(st.booleans()) else Illegal()
    failing = data.draw(broken(program, failure))
    recording = Recording(workbench, program)
    recording.feed(data.draw(inputs(program)))
    before, bytes_before = recording.static.read(), workbench.live_bytes()
    with unchanged(facade), pytest.raises((KeyError, CaptureError)) as caught:
        recording.capture(failing)
    if isinstance(caught.value, CaptureError):
        four_parts(caught.value)
    else:
        assert caught.value is error
    del caught
    error.__traceback__ = None
    recording.static.results.clear()
    assert recording.static.read() == before
    assert workbench.live_bytes() == bytes_before
    recording.capture(program)
    recording.replay()
    assert recording.differences() == {}
    recording.close()


@given(data=st.data())
def test_concurrent_replays_of_one_graph_are_serialised(
    workbench: Workbench, data: st.DataObject
) -> None:
    program = data.draw(programs(conditionals=_conditionals(workbench), depth=2, size=4))
    recording = Recording(workbench, program)
    recording.capture()
    recording.feed(data.draw(inputs(program)))
    times = data.draw(st.integers(2, 4))
    failed: list[BaseException] = []
    barrier = threading.Barrier(times)

    def launch() -> None:
        try:
            barrier.wait()
            recording.graph.replay()
            workbench.synchronize()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=launch) for _ in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    # As many replays as threads, one after the other in whatever order: the same as eagerly.
    for _ in range(times):
        recording.mirror_once()
    assert recording.differences() == {}
    recording.close()


@pytest.mark.needs("stage")
@given(data=st.data())
def test_staged_calls_equal_eager_and_their_results_stay(
    workbench: Workbench, data: st.DataObject
) -> None:
    program = data.draw(programs(conditionals=_conditionals(workbench)))
    recording = Recording(workbench, program)
    recording.capture()
    makers: dict[str, Callable[[Any], Any]] = {
        **dict.fromkeys(program.registers, workbench.buffer),
        **{name: lambda values: workbench.flag(bool(values[0])) for name in program.flags},
        **{name: lambda values: workbench.index(int(values[0])) for name in program.indices},
    }
    static = [recording.static.buffers[name] for name in makers]
    plan = recording.graph.stage(static, static)
    given_back: list[tuple[Any, dict[str, bytes]]] = []
    for fresh in data.draw(st.lists(inputs(program), min_size=1, max_size=4)):
        results = plan([make(fresh[name]) for name, make in makers.items()])
        recording.mirror.feed(fresh)
        recording.mirror_once()
        given_back.append((results, recording.mirror.read()))
    churn(workbench, program.length)
    for results, eager in given_back:
        for name, result in zip(makers, results, strict=True):
            assert bits(workbench.read(result)) == eager[name]
    recording.close()


@pytest.mark.needs("conditional_open")
@given(data=st.data())
def test_the_forms_of_conditionals_are_one(workbench: Workbench, data: st.DataObject) -> None:
    program: Program = data.draw(programs())
    fresh = data.draw(inputs(program))
    outcomes = []
    for form in sorted(FORMS):
        recording = Recording(workbench, program, form=form)
        recording.capture()
        recording.feed(fresh)
        recording.replay()
        outcomes.append(recording.static.read())
        recording.close()
    assert all(one == outcomes[0] for one in outcomes)
