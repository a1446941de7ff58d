"""One program, every driver that works here: the same bytes, eagerly and replayed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorplay_core import discovery, select
from tensorplay_core.testing.oracle import Recording
from tensorplay_core.testing.strategies import inputs, programs
from tensorplay_core.testing.workbench import Workbench


@pytest.fixture(scope="module")
def benches() -> dict[str, Workbench]:
    found = {}
    for one in discovery.find_drivers():
        if one.reason is None:
            runtime = select(one.name)
            if runtime.can("conditional_open"):
                make = discovery.find_workbench(one.name)
                found[one.name] = make(runtime, runtime.resolve_device(None))
    return found


def test_there_are_drivers_to_compare(benches: dict[str, Workbench]) -> None:
    assert {"host", "torch"} <= benches.keys()


@given(data=st.data())
def test_drivers_agree_on_any_program(benches: dict[str, Workbench], data: st.DataObject) -> None:
    program = data.draw(programs())
    several = data.draw(st.lists(inputs(program), min_size=1, max_size=3))
    outcomes = {}
    for name, bench in benches.items():
        recording = Recording(bench, program)
        recording.capture()
        outcomes[name] = []
        for fed in several:
            recording.feed(fed)
            recording.replay()
            outcomes[name] += [recording.static.read(), recording.mirror.read()]
        recording.close()
    reference = outcomes.pop("host")
    assert outcomes == dict.fromkeys(outcomes, reference)
