"""One at a time: a token instead of a lock, and a launcher that holds it."""

import dataclasses
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tensorplay_core.drivers.cuda import topology
from tensorplay_core.drivers.cuda.bindings import Calls
from tensorplay_core.drivers.cuda.captures import Branches
from tensorplay_core.drivers.cuda.executable import CudaExecutable
from tensorplay_core.drivers.cuda.hot import Hot, hot_calls
from tensorplay_core.drivers.cuda.launching import launcher
from tensorplay_core.drivers.cuda.turn import Turn
from tensorplay_core.errors import ReplayError
from tensorplay_core.topology import Node, Topology


def test_a_turn_is_one_threads_at_a_time() -> None:
    turn, inside, most, failed = Turn(), [0], [0], []

    def work() -> None:
        try:
            for _ in range(50):
                with turn:
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                    time.sleep(0)
                    inside[0] -= 1
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (failed, most) == ([], [1])


def test_a_turn_ends_with_its_block_even_if_that_fails() -> None:
    turn = Turn()
    with pytest.raises(KeyError), turn:
        raise KeyError
    turn.take()
    with pytest.raises(IndexError):
        turn.take()


def test_giving_back_twice_makes_no_second_turn() -> None:
    turn = Turn()
    turn.give(None)
    turn.give(None)
    turn.take()
    with pytest.raises(IndexError):
        turn.take()


PLAIN = hot_calls(
    Calls(
        SimpleNamespace(
            CUstream=lambda handle: ["s", handle],
            cuGraphLaunch=None,
            cuGraphExecKernelNodeSetParams=None,
            cuStreamIsCapturing=None,
            cuCtxGetCurrent=None,
            cuGraphKernelNodeGetParams=None,
        )
    )
)


class Refused(Exception):
    """What calls of integers raise in place of a code."""

    def __init__(self, status: int) -> None:
        self.status = status


INTEGERS = dataclasses.replace(PLAIN, handle=int, native=int, raised=(Refused,))


class Launches:
    """A launcher over a fake driver."""

    def __init__(self, hot: Hot = PLAIN) -> None:
        self.calls: list[tuple[Any, Any]] = []
        self.code: Any = 0
        self.current = 3
        self.turn = Turn()
        self.during: Callable[[], None] | None = None
        executable: Any = SimpleNamespace(
            mended=lambda code: code == 201 and self.mend(), fail=self.fail
        )
        work: Any = SimpleNamespace(hot=hot)
        self.launch, self.target, self.rebind, _ = launcher(
            work, "exec", self.call, self.turn, lambda: self.current, executable
        )

    def call(self, native: Any, target: Any) -> tuple[Any]:
        self.calls.append((native, target))
        if self.during is not None:
            self.during()
        return (self.code,)

    def mend(self) -> bool:
        self.code = 0
        return True

    def fail(self, code: Any, call: str) -> None:
        raise KeyError(code, call)


def test_a_launch_goes_to_the_current_stream_or_to_the_one_named() -> None:
    made = Launches()
    made.launch()
    made.current = 4
    made.launch()
    stream = SimpleNamespace(__cuda_stream__=lambda: (0, 9))
    made.launch(stream)
    made.launch(stream)
    made.launch(9)
    made.launch(stream=5)
    made.launch(0)
    assert [target[1] for _, target in made.calls] == [3, 4, 9, 9, 9, 5, 0]
    assert {native for native, _ in made.calls} == {"exec"}


def test_one_stream_is_one_native_object() -> None:
    made = Launches()
    for stream in (None, 3, SimpleNamespace(__cuda_stream__=lambda: (0, 3))):
        made.launch(stream)
    assert len({id(target) for _, target in made.calls}) == 1
    assert made.target(3) is made.calls[0][1]


def test_streams_long_gone_are_forgotten() -> None:
    made = Launches()
    for handle in range(1000):
        made.launch(handle)
    made.launch(3)
    assert made.calls[-1][1] == ["s", 3]


def test_a_failed_launch_raises_and_gives_its_turn_back() -> None:
    made = Launches()
    made.code = 700
    with pytest.raises(KeyError) as caught:
        made.launch()
    assert caught.value.args == (700, "cuGraphLaunch")
    made.turn.take()


def test_a_thread_without_a_context_launches_again_once_it_has_one() -> None:
    made = Launches()
    made.code = 201
    made.launch()
    assert len(made.calls) == 2


def test_a_call_that_raises_gives_its_turn_back() -> None:
    made = Launches()

    def refuse(*_: object) -> Any:
        raise KeyError

    made.rebind(refuse)
    with pytest.raises(KeyError):
        made.launch()
    made.turn.take()


def test_a_launch_waits_for_its_turn() -> None:
    made = Launches()
    made.turn.take()
    other = threading.Thread(target=made.launch)
    other.start()
    time.sleep(0.01)
    assert made.calls == []
    made.turn.give(None)
    other.join()
    assert len(made.calls) == 1


@pytest.mark.parametrize(
    ("code", "current", "mended", "set_to"),
    [(0, 0, False, []), (700, 0, False, []), (201, 0, True, [7]), (201, 7, True, []),
     (201, 8, False, [])],
)  # fmt: skip
def test_a_missing_context_is_mended_whoever_makes_it_current(
    code: int, current: int, mended: bool, set_to: list[int]
) -> None:
    """It may have been a finaliser, between the launch that failed and the look at it."""
    seen: list[int] = []
    calls = SimpleNamespace(
        cuCtxGetCurrent=lambda: current, cuCtxSetCurrent=lambda own, about: seen.append(own)
    )
    executable: Any = SimpleNamespace(
        _work=SimpleNamespace(cu=calls, context=lambda device: 7), device=0, subject="a graph"
    )
    assert CudaExecutable.mended(executable, code) is mended
    assert seen == set_to


# what a graph is told to contain


@pytest.mark.parametrize(
    ("name", "readable"),
    [
        (b"plain_name", "plain_name"),
        (b"_Z3addPfS_i", "add(float*, float*, int)"),
        (b"_ZN2at6native4copyIfEEvPT_", "void at::native::copy<float>(float*)"),
        (b"_Znonsense!", "_Znonsense!"),
    ],
)
def test_kernel_names_are_demangled(name: bytes, readable: str) -> None:
    assert topology._demangled(name) == readable


def test_differences_of_graphs_are_counted_by_kind() -> None:
    def shape(*kinds: str) -> Topology:
        nodes = [Node(index=place, kind=kind, name=kind) for place, kind in enumerate(kinds)]
        return Topology(nodes=tuple(nodes))

    assert topology.count_differences(shape("kernel"), shape("kernel")) == []
    assert topology.count_differences(
        shape("kernel", "memset", "memset"), shape("kernel", "memcpy", "kernel")
    ) == ["kernel: 1 before, 2 after", "memcpy: 0 before, 1 after", "memset: 2 before, 0 after"]


def test_bodies_are_remembered_by_role() -> None:
    known = Branches("if", (("then", "g1"), ("else", "g2")))
    assert [role for role, _ in known.bodies] == ["then", "else"]


def test_calls_of_integers_get_integers_and_say_by_an_exception_what_failed() -> None:
    made = Launches(dataclasses.replace(INTEGERS, native=lambda value: value))
    made.launch(7)
    made.launch()
    assert [target for _, target in made.calls] == [7, 3]

    def refuse(native: Any, target: Any) -> None:
        if made.code != 0:
            raise Refused(made.code)

    made.rebind(refuse)
    made.launch()
    made.code = 700
    with pytest.raises(KeyError) as caught:
        made.launch()
    assert caught.value.args == (700, "cuGraphLaunch")
    made.code = 201
    made.launch()
    made.turn.take()


def test_a_launch_in_the_midst_of_a_launch_is_refused() -> None:
    made = Launches()
    refused: list[str] = []

    def within() -> None:
        with pytest.raises(ReplayError) as caught:
            made.launch()
        refused.append(str(caught.value))

    made.during = within
    made.launch()
    made.during = None
    made.launch()
    assert len(refused) == 1
    assert "in the midst of launching" in refused[0]
    assert len(made.calls) == 2
    with made.turn, pytest.raises(ReplayError):
        made.launch()
    made.launch()


def test_an_interrupt_of_who_waits_leaves_the_turn_to_who_has_it() -> None:
    """Ctrl-C comes when the queue of the device is full, and a launch waits for another's."""
    made = Launches()
    made.turn.take()

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tensorplay_core.drivers.cuda.turn.time.sleep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made.launch()
    with pytest.raises(IndexError):
        made.turn.take()
    made.turn.give(None)
    made.launch()
    assert len(made.calls) == 1
