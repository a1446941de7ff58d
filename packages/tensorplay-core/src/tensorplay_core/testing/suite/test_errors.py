"""Of errors: each bad use has a typed error of four parts and leaves no trace."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import tensorplay_core
from tensorplay_core import discovery, select
from tensorplay_core.errors import (
    ArgumentError,
    ArgumentTypeError,
    CaptureError,
    DriverUnavailable,
    EmptyCapture,
    GraphStateError,
    TensorplayError,
    UnjoinedWork,
    UnknownDriver,
)
from tensorplay_core.runtime import Runtime
from tensorplay_core.testing.facade import Facade
from tensorplay_core.testing.workbench import Workbench

from .checks import captures_again, four_parts, refused, unchanged

# choosing a driver


def test_an_unknown_driver_is_refused_with_the_names_there_are(runtime: Runtime) -> None:
    with pytest.raises(UnknownDriver) as caught:
        select(f"{runtime.name}x")
    four_parts(caught.value)
    assert runtime.name in str(caught.value)


def test_a_driver_that_cannot_work_here_says_why_and_is_never_replaced(runtime: Runtime) -> None:
    found = discovery.find_drivers()
    assert runtime.name in [one.name for one in found if one.reason is None]
    for one in found:
        if one.reason is None:
            assert select(one.name).name == one.name
            continue
        with pytest.raises(DriverUnavailable) as caught:
            select(one.name)
        four_parts(caught.value)
        assert one.name in str(caught.value)
        assert one.reason.strip()


# arguments


@pytest.mark.parametrize("value", [None, "graph", object(), 3])
def test_capturing_into_what_is_no_graph_is_refused(facade: Facade, value: Any) -> None:
    with refused(facade, ArgumentTypeError), facade.capture(value):
        pytest.fail("the block was entered")


@pytest.mark.parametrize("mode", ["Global", "", None, 0, object()])
def test_an_unknown_capture_mode_is_refused(facade: Facade, mode: Any) -> None:
    with refused(facade, ArgumentError):
        facade.new().capture_begin(capture_error_mode=mode)
    with refused(facade, ArgumentError), facade.capture(facade.new(), capture_error_mode=mode):
        pytest.fail("the block was entered")


@pytest.mark.parametrize("stream", ["stream", 1.5, object()])
def test_capturing_on_what_is_no_stream_is_refused(facade: Facade, stream: Any) -> None:
    with refused(facade, ArgumentTypeError):
        facade.new().capture_begin(stream=stream)


def test_what_is_no_generator_of_the_driver_s_is_refused(facade: Facade) -> None:
    made = facade.new()
    with refused(facade, TensorplayError):
        made.register_generator_state(object())
        with facade.capture(made):
            pytest.fail("the block was entered")


def test_a_device_that_is_not_there_is_refused(facade: Facade) -> None:
    with refused(facade, ArgumentError):
        facade.CUDAGraph(device="no such device")
    with refused(facade, ArgumentError), facade.capture(facade.new(), device="no such device"):
        pytest.fail("the block was entered")


# streams


def test_the_legacy_stream_cannot_capture(facade: Facade) -> None:
    with refused(facade, CaptureError):
        facade.new().capture_begin(stream=0)


def test_a_stream_captures_once_at_a_time(workbench: Workbench, facade: Facade) -> None:
    total, chosen, outer = workbench.buffer([0.0]), workbench.stream(), facade.new()
    with facade.capture(outer, stream=chosen):
        workbench.add_(total, 1.0)
        with pytest.raises(CaptureError) as caught:
            facade.new().capture_begin(stream=chosen)
        workbench.add_(total, 10.0)
    four_parts(caught.value)
    outer.replay()
    assert workbench.read(total) == [11.0]
    captures_again(facade)


def test_a_capture_inside_a_capture_works_or_is_refused_and_harms_neither(
    workbench: Workbench, facade: Facade
) -> None:
    left, right, outer, inner = (
        workbench.buffer([0.0]),
        workbench.buffer([0.0]),
        facade.new(),
        facade.new(),
    )
    worked = False
    with unchanged(facade), facade.capture(outer):
        workbench.add_(left, 1.0)
        try:
            with facade.capture(inner):
                workbench.add_(right, 10.0)
            worked = True
        except CaptureError as error:
            four_parts(error)
        workbench.add_(left, 2.0)
    outer.replay()
    if worked:
        inner.replay()
    assert workbench.read(left) == [3.0]
    assert workbench.read(right) == [10.0 if worked else 0.0]


def test_a_replay_inside_a_capture_is_part_of_it_or_refused(
    workbench: Workbench, facade: Facade
) -> None:
    total, outer, worked = workbench.buffer([0.0]), facade.new(), False
    other = facade.record(lambda: workbench.add_(total, 10.0))
    try:
        with facade.capture(outer):
            workbench.add_(total, 1.0)
            other.replay()
            worked = True
    except TensorplayError as error:
        four_parts(error)
    assert workbench.read(total) == [0.0]
    if worked:
        outer.replay()
    other.replay()
    assert workbench.read(total) == [21.0 if worked else 10.0]
    captures_again(facade)


def test_a_fork_that_is_not_joined_is_refused(workbench: Workbench, facade: Facade) -> None:
    total = workbench.buffer([0.0])

    def work() -> None:
        workbench.add_(total, 1.0)
        with workbench.on(workbench.fork()):
            workbench.add_(total, 1.0)

    with refused(facade, UnjoinedWork):
        facade.record(work)
    assert workbench.read(total) == [0.0]


# illegal work


@pytest.mark.parametrize("illegal", ["fail", "read", "write", "synchronize"])
def test_the_host_does_not_wait_inside_a_capture(
    workbench: Workbench, facade: Facade, illegal: str
) -> None:
    total = workbench.buffer([0.0])
    arguments = {"read": (total,), "write": (total, [5.0])}.get(illegal, ())

    def work() -> None:
        workbench.add_(total, 1.0)
        getattr(workbench, illegal)(*arguments)

    with refused(facade, CaptureError):
        facade.record(work)
    assert workbench.read(total) == [0.0]


@pytest.mark.parametrize("illegal", ["fail", "read"])
def test_an_illegal_call_that_the_user_swallows_is_not_forgotten(
    workbench: Workbench, facade: Facade, illegal: str
) -> None:
    total = workbench.buffer([0.0])
    arguments = (total,) if illegal == "read" else ()

    def work() -> None:
        workbench.add_(total, 1.0)
        try:
            getattr(workbench, illegal)(*arguments)
        except CaptureError:
            workbench.add_(total, 10.0)

    # A driver may refuse a call before it harms the capture: then all else is captured. It may
    # not pretend: a capture that was broken ends with an error.
    try:
        made = facade.record(work)
    except CaptureError as error:
        four_parts(error)
        assert workbench.read(total) == [0.0]
        captures_again(facade)
        return
    made.replay()
    assert workbench.read(total) == [11.0]


def test_an_empty_capture_is_refused_unless_wanted(facade: Facade) -> None:
    made = facade.new()
    with refused(facade, EmptyCapture), facade.capture(made):
        pass
    with refused(facade, GraphStateError):
        made.replay()
    with facade.capture(made, allow_empty=True):
        pass
    made.replay()


def test_work_on_another_stream_is_not_captured(workbench: Workbench, facade: Facade) -> None:
    total = workbench.buffer([0.0])
    with (
        refused(facade, EmptyCapture),
        facade.capture(facade.new(), capture_error_mode="relaxed"),
        workbench.on(workbench.stream()),
    ):
        workbench.add_(total, 1.0)
    assert workbench.read(total) == [1.0]


# the user's own exceptions


class _Odd(BaseException):
    """Not even an Exception."""


@pytest.mark.parametrize("kind", [KeyError, KeyboardInterrupt, SystemExit, _Odd])
def test_the_users_exception_surfaces_as_it_is(
    workbench: Workbench, facade: Facade, kind: type[BaseException]
) -> None:
    total, error = workbench.buffer([0.0]), kind("the user's own")
    with unchanged(facade), pytest.raises(kind) as caught, facade.capture(facade.new()):
        workbench.add_(total, 1.0)
        raise error
    assert caught.value is error
    assert workbench.read(total) == [0.0]
    captures_again(facade)


def test_an_exception_on_a_forked_stream_leaves_no_trace(
    workbench: Workbench, facade: Facade
) -> None:
    total, error = workbench.buffer([0.0]), KeyError("the user's own")
    with (
        unchanged(facade),
        pytest.raises(KeyError) as caught,
        facade.capture(facade.new()),
        workbench.on(workbench.fork()),
    ):
        workbench.add_(total, 1.0)
        raise error
    assert caught.value is error
    captures_again(facade)
    assert workbench.read(total) == [0.0]


def test_a_failed_capture_gives_memory_back_though_its_exception_lives(
    workbench: Workbench, facade: Facade
) -> None:
    x = workbench.buffer([1.0] * 64)
    before = workbench.live_bytes()
    made = facade.new()

    def work() -> None:
        for _ in range(4):
            workbench.double(x)
        raise KeyError

    kept = None
    try:
        with facade.capture(made):
            work()
    except KeyError as error:
        kept = error
    assert kept is not None
    assert workbench.live_bytes() == before


# the shape of errors


PLAIN: dict[str, Any] = {
    "doing": "replaying",
    "subject": "it",
    "met": "a wall",
    "remedy": "Go round it.",
}
OWN: dict[str, dict[str, Any]] = {
    "DriverCallFailed": {
        "call": "launch",
        "code": 1,
        "code_name": "WALL",
        "meaning": "a wall",
        "subject": "it",
        "remedy": "Go round it.",
    },
    "OperationRefused": {"operation": "item", "where": "a.py:1", "met": "a", "remedy": "Go."},
    "SignatureMismatch": {"differences": ["a: captured 1, got 2"], "subject": "it"},
    "UnsupportedByDriver": {"driver": "tiny", "hook": "go", "doing": "going", "remedy": "Walk."},
}
"""Facts of the errors that have some of their own."""


@pytest.mark.parametrize("name", tensorplay_core.errors.__all__)
def test_errors_survive_pickling(name: str) -> None:
    kind = getattr(tensorplay_core.errors, name)
    error = kind(**OWN.get(name, PLAIN))
    error.add_note("context")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    assert again.__notes__ == ["context"]
    four_parts(again)
