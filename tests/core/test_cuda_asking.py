"""What the CUDA driver asks cheaply first, and what it has compiled code ask. No GPU is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tensorplay_core import compiled
from tensorplay_core.drivers.cuda import topology, updating
from tensorplay_core.drivers.cuda.addresses import bound
from tensorplay_core.drivers.cuda.bindings import Calls
from tensorplay_core.drivers.cuda.hot import Hot, hot_calls
from tensorplay_core.drivers.cuda.work import Work


class Refused(Exception):
    """What a call of integers raises."""


def asked(cheap: Any, *, status: int = 1) -> tuple[bool, list[str]]:
    """Whether stream 16 is capturing, and which calls said so."""
    calls = []

    def capturing(handle: int) -> Any:
        calls.append("cheap")
        if isinstance(cheap, Exception):
            raise cheap
        return cheap

    def checked(handle: int, *, about: str) -> int:
        calls.append("checked")
        assert about == "stream 0x10"
        return status

    work: Any = SimpleNamespace(
        hot=SimpleNamespace(capturing=capturing, handle=int, raised=(Refused,)),
        cu=SimpleNamespace(cuStreamIsCapturing=checked),
    )
    return Work.is_capturing(work, 16), calls


@pytest.mark.parametrize(
    ("cheap", "status", "answer", "calls"),
    [
        (0, 1, False, ["cheap"]),
        (1, 1, True, ["cheap", "checked"]),
        (400, 0, False, ["cheap", "checked"]),
        (Refused(), 1, True, ["cheap", "checked"]),
    ],
    ids=["no", "yes", "cannot be told", "raises"],
)
def test_a_stream_is_asked_cheaply_first(
    cheap: Any, status: int, answer: bool, calls: list[str]
) -> None:
    assert asked(cheap, status=status) == (answer, calls)


def test_the_legacy_streams_never_capture() -> None:
    assert Work.is_capturing(SimpleNamespace(), 0) is False  # type: ignore[arg-type]


@pytest.mark.parametrize(("told", "count"), [(3, 3), (0, 0), (-1, 7)])
def test_nodes_are_counted_in_c_where_that_works(
    told: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    work: Any = driver_of(cuGraphGetNodes=4096)
    work.cu = SimpleNamespace(count_nodes=lambda graph, *, about: 7)
    template: Any = SimpleNamespace(graph=5, subject="a graph")
    monkeypatch.setattr(compiled, "counter", lambda: lambda function, graph: told)
    assert topology.count(work, template) == count
    monkeypatch.setattr(compiled, "counter", lambda: None)
    assert topology.count(work, template) == 7


def driver_of(**addresses: int) -> Any:
    """A driver whose functions are at these addresses."""
    return SimpleNamespace(is_native=True, addresses=addresses, bound={})


def test_what_is_compiled_is_given_the_addresses_of_a_true_drivers_functions() -> None:
    work = driver_of(cuA=4096, cuB=8192)
    made = bound(work, lambda *given: given, ("cuB", "cuA"))
    assert made is not None
    assert made(1, 2) == (8192, 4096, 1, 2)
    assert bound(work, lambda *given: None, ("cuB", "cuA")) is made
    assert bound(work, None, ("cuB", "cuA")) is None
    work.is_native = False
    assert bound(work, lambda *given: given, ("cuB", "cuA")) is None


@pytest.mark.parametrize(
    ("told", "code", "calls"),
    [
        (None, 910, ["inside", "plain"]),
        (0, 0, []),
        (910, 910, []),
    ],
    ids=["another context", "done", "refused"],
)
def test_an_update_is_asked_for_in_c_where_that_works(
    told: int | None, code: int, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    work, made, given = driver_of(**dict.fromkeys(updating._ASKED, 4096)), [], []

    @contextmanager
    def inside(device: int) -> Iterator[None]:
        made.append("inside")
        yield

    def plain(executable: int, graph: int) -> tuple[int, None]:
        made.append("plain")
        return (910, None)

    def refresh(*arguments: int) -> int | None:
        given.append(arguments[3:])
        return told

    work.context, work.inside = lambda device: 77, inside
    work.cu = SimpleNamespace(raw={"cuGraphExecUpdate": plain}.get)
    monkeypatch.setattr(compiled, "refresher", lambda: refresh)
    executable: Any = SimpleNamespace(native=8, device=0)
    assert updating._refreshed(work, executable, 9) == code
    assert (made, given) == (calls, [(77, 8, 9)])
    monkeypatch.setattr(compiled, "refresher", lambda: None)
    assert updating._refreshed(work, executable, 9) == 910


def plain(code: int, found: int) -> Hot:
    """The calls over plain functions, with a stream that is asked whether it captures."""
    native = SimpleNamespace(
        CUstream=int,
        cuGraphLaunch=None,
        cuGraphExecKernelNodeSetParams=None,
        cuStreamIsCapturing=lambda stream: (code, found),
        cuCtxGetCurrent=None,
        cuGraphKernelNodeGetParams=None,
    )
    return hot_calls(Calls(native))


def test_what_a_stream_cannot_say_is_raised_and_not_taken_for_a_yes() -> None:
    """A thread's first call of the driver finds no context there, and is mended by its code."""
    assert plain(0, 1).capturing(16) == 1
    assert plain(0, 0).capturing(16) == 0
    hot = plain(201, 0)
    with pytest.raises(hot.raised) as caught:
        hot.capturing(16)
    assert caught.value.status == 201
