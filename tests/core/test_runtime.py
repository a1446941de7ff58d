"""One driver a runtime, capability by the driver's own hooks, observers behind glass."""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any

import pluggy
import pytest

from tensorplay_core import ArgumentTypeError, UnsupportedByDriver, select
from tensorplay_core.discovery import load_card
from tensorplay_core.hookspecs import hookimpl
from tensorplay_core.observers.log import LogObserver
from tensorplay_core.observers.statistics import StatisticsObserver
from tensorplay_core.protocols import CaptureOptions
from tensorplay_core.runtime import NOUNS, Runtime


class Third:
    """A driver of somebody else's, with a single capability."""

    def __init__(self) -> None:
        self.aborted = 0

    @hookimpl
    def tensorplay_resolve_device(self, device: object) -> str:
        if device == "moon":
            raise LookupError("no such device")
        return f"third:{device}"

    @hookimpl
    def tensorplay_graph_abort(self, capture: object, error: object) -> None:
        self.aborted += 1


class Meddler:
    """Tries everything an observer must not be able to do."""

    def __init__(self, when: str) -> None:
        self.when = when
        self.seen: list[object] = []

    @hookimpl(wrapper=True)
    def tensorplay_resolve_device(self, device: object) -> Generator[None, Any, Any]:
        self.seen.append(device)
        if self.when == "before":
            raise KeyError("before the call")
        try:
            result = yield
        except LookupError:
            if self.when == "swallow":
                return "swallowed"
            if self.when == "replace error":
                raise ZeroDivisionError from None
            raise
        if self.when == "after":
            raise KeyError("after the call")
        if self.when == "yield twice":
            yield
        return "replaced" if self.when == "replace" else result

    @hookimpl(wrapper=True)
    def tensorplay_graph_abort(self, capture: object) -> Generator[None, Any, Any]:
        self.seen.append("abort")
        return (yield)

    @hookimpl(wrapper=True)
    def tensorplay_conditional_open(self, kind: object) -> Generator[None, Any, Any]:
        return (yield)


WAYS = ["before", "after", "replace", "swallow", "replace error", "yield twice", "well"]


@pytest.mark.parametrize("when", WAYS)
def test_an_observer_changes_neither_result_nor_error(
    when: str, caplog: pytest.LogCaptureFixture
) -> None:
    meddler = Meddler(when)
    runtime = Runtime(Third(), [meddler], name="third")
    with caplog.at_level(logging.CRITICAL):
        assert runtime.resolve_device("sun") == "third:sun"
        with pytest.raises(LookupError, match="no such device"):
            runtime.resolve_device("moon")
    assert meddler.seen == ["sun", "moon"]


class Writer:
    """Writes to what a driver is given."""

    @hookimpl(wrapper=True)
    def tensorplay_graph_begin(self, options: Any) -> Generator[None, Any, Any]:
        options.generators = ("mine",)
        return (yield)


def test_an_observer_changes_no_options_of_a_capture(caplog: pytest.LogCaptureFixture) -> None:
    runtime = Runtime(load_card("host").load(), [Writer()], name="host")
    pool = runtime.pool_create("host")
    options = CaptureOptions()
    with caplog.at_level(logging.CRITICAL):
        capture = runtime.graph_begin(
            "host", runtime.side_stream("host", pool), pool, "global", options
        )
    assert options.generators == ()
    runtime.graph_abort(capture, None)
    runtime.pool_release(pool)


def test_an_observer_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    Runtime(Third(), [Meddler("before")], name="third").resolve_device("sun")
    assert any(record.levelno >= logging.ERROR for record in caplog.records)


def test_unwinding_does_not_pass_observers() -> None:
    driver, meddler = Third(), Meddler("well")
    Runtime(driver, [meddler], name="third").graph_abort(None, None)  # type: ignore[arg-type]
    assert driver.aborted == 1
    assert meddler.seen == []


def test_an_observer_alone_is_no_capability() -> None:
    runtime = Runtime(Third(), [Meddler("well")], name="third")
    assert runtime.can("resolve_device")
    assert not runtime.can("conditional_open")
    with pytest.raises(UnsupportedByDriver) as caught:
        runtime.conditional_read(None)
    assert (caught.value.driver, caught.value.hook) == ("third", "conditional_read")
    assert runtime.nouns()["conditional"] == ()


def test_an_observer_that_would_answer_for_the_driver_is_refused() -> None:
    class Impostor:
        @hookimpl
        def tensorplay_resolve_device(self, device: object) -> str:
            return "mine"

    with pytest.raises(TypeError, match="Impostor"):
        Runtime(Third(), [Impostor()], name="third")


@pytest.mark.parametrize("argument", ["devise", "device"])
def test_a_misspelt_hook_or_argument_is_refused(argument: str) -> None:
    namespace: dict[str, Any] = {"hookimpl": hookimpl}
    hook = "tensorplay_resolve_device" if argument == "devise" else "tensorplay_resolve_devise"
    exec(f"class Bad:\n  @hookimpl\n  def {hook}(self, {argument}): return 1", namespace)
    with pytest.raises(pluggy.PluginValidationError):
        Runtime(namespace["Bad"](), name="bad")


def test_two_runtimes_do_not_see_each_other() -> None:
    class Fourth:
        @hookimpl
        def tensorplay_resolve_device(self, device: object) -> str:
            return f"fourth:{device}"

    third, fourth = Runtime(Third(), name="third"), Runtime(Fourth(), name="fourth")
    assert third.resolve_device("x") == "third:x"
    assert fourth.resolve_device("x") == "fourth:x"


def test_every_hook_has_its_typed_method() -> None:
    for hook in (hook for hooks in NOUNS.values() for hook in hooks):
        assert callable(getattr(Runtime, hook, None)), hook


def test_shipped_observers_watch_without_changing(caplog: pytest.LogCaptureFixture) -> None:
    statistics = StatisticsObserver()
    runtime = Runtime(Third(), [statistics, LogObserver()], name="third")
    with caplog.at_level(logging.DEBUG, logger="tensorplay_core.calls"):
        assert runtime.resolve_device("sun") == "third:sun"
        with pytest.raises(LookupError):
            runtime.resolve_device("moon")
    entry = statistics.calls["resolve_device"]
    assert (entry.calls, entry.failures) == (2, 1)
    said = [record.getMessage().split(" ")[0].rstrip(":") for record in caplog.records]
    assert said == [
        "resolve_device.started",
        "resolve_device.complete",
        "resolve_device.started",
        "resolve_device.failed",
    ]


def test_a_driver_is_chosen_by_a_string() -> None:
    with pytest.raises(ArgumentTypeError, match="an int"):
        select(5)  # type: ignore[arg-type]


class Fourth:
    """A driver whose hooks take their arguments in an order of their own, or not all of them."""

    @hookimpl
    def tensorplay_graph_adopt(self, owner: str, stream: object) -> tuple[object, str]:
        return (stream, owner)

    @hookimpl
    def tensorplay_graph_dot(self, template: object) -> str:
        return f"digraph {template}"

    @hookimpl
    def tensorplay_graph_capturing(self, device: object) -> int:
        return 1

    @hookimpl
    def tensorplay_side_stream(self, device: object, pool: object) -> tuple[object, object]:
        return (device, pool)


class Watching:
    def __init__(self) -> None:
        self.seen: list[object] = []

    @hookimpl(wrapper=True)
    def tensorplay_side_stream(
        self, device: object, pool: object
    ) -> Generator[None, object, object]:
        self.seen.append((device, pool))
        return (yield)


@pytest.mark.parametrize("watched", [False, True])
def test_hooks_get_their_arguments_by_name_whatever_their_order(watched: bool) -> None:
    watching = Watching()
    runtime = Runtime(Fourth(), [watching] if watched else [], name="fourth")
    assert runtime.graph_adopt("a stream", "an owner") == ("a stream", "an owner")
    assert runtime.graph_adopt(owner="an owner", stream="a stream") == ("a stream", "an owner")
    assert runtime.graph_dot("g", False) == "digraph g"
    assert runtime.graph_capturing("third") is True
    assert runtime.side_stream("device", "pool") == ("device", "pool")
    assert watching.seen == ([("device", "pool")] if watched else [])


def test_what_a_subclass_does_in_a_hooks_place_is_done() -> None:
    class Counting(Runtime):
        asked = 0

        def side_stream(self, device: object, pool: object) -> object:
            self.asked += 1
            return super().side_stream(device, pool)

    runtime = Counting(Fourth(), name="fourth")
    assert runtime.side_stream("device", "pool") == ("device", "pool")
    assert runtime.asked == 1
