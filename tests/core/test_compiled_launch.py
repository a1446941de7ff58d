"""The launch in C does what Python's does, or leaves it to that."""

import ctypes
import gc
import threading
import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tensorplay_core import compiled
from tensorplay_core.compiled import make_token
from tensorplay_core.drivers.cuda.direct import direct
from tensorplay_core.drivers.cuda.streams import handle_of
from tensorplay_core.drivers.cuda.turn import Turn
from tensorplay_core.errors import TensorplayError

BUILT = compiled.launch_type()

pytestmark = pytest.mark.skipif(BUILT is None, reason=f"the launch in C is {compiled.summary()}")

FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
EXECUTABLE = 0x7F00_0000_1000


class Stream:
    """What counts as a stream."""

    def __init__(self, handle: int) -> None:
        self.__cuda_stream__ = lambda: (0, handle)


class Launches:
    """A launch in C over a fake driver."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []
        self.long_way: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.failures: list[tuple[int, int]] = []
        self.code, self.current = 0, 3
        self.turn = Turn()
        self.during: Callable[[], object] = lambda: None
        self.function = FUNCTION(self.driver)
        assert BUILT is not None
        assert self.turn.token is not None
        self.token = self.turn.token
        address = ctypes.cast(self.function, ctypes.c_void_p).value
        self.launch: Any = BUILT(
            self.python,
            EXECUTABLE,
            self.token,
            lambda: self.current,
            handle_of,
            self.failed,
            address or 0,
        )

    def driver(self, executable: int, stream: int | None) -> int:
        self.calls.append((executable, stream or 0))
        self.during()
        return self.code

    def failed(self, code: int, handle: int) -> str:
        self.failures.append((code, handle))
        return "failed"

    def python(self, *args: Any, **kwargs: Any) -> str:
        self.long_way.append((args, kwargs))
        return "by Python"


def test_it_goes_to_the_current_stream_or_to_the_one_named() -> None:
    made, stream = Launches(), Stream(9)
    for call in (
        lambda: made.launch(),
        lambda: made.launch(None),
        lambda: made.launch(stream=None),
        lambda: made.launch(stream),
        lambda: made.launch(stream),
        lambda: made.launch(stream=stream),
        lambda: made.launch(7),
        lambda: made.launch(stream=0),
        lambda: made.launch(1 << 47),
    ):
        assert call() is None
    assert made.calls == [(EXECUTABLE, one) for one in (3, 3, 3, 9, 9, 9, 7, 0, 1 << 47)]
    made.current = 4
    made.launch()
    assert made.calls[-1] == (EXECUTABLE, 4)
    assert made.long_way == []


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((-1,), {}), ((1 << 70,), {}), ((1, 2), {}), ((), {"where": 1}), ((1,), {"stream": 2})],
)
def test_other_calls_are_left_to_python(args: Any, kwargs: Any) -> None:
    made = Launches()
    assert made.launch(*args, **kwargs) == "by Python"
    assert made.long_way == [(args, kwargs)]
    assert made.calls == []
    made.turn.take()


def test_the_current_stream_may_be_an_object() -> None:
    made, asked = Launches(), []
    first, second = Stream(5), Stream(6)

    def look(stream: Any) -> int:
        asked.append(stream)
        return handle_of(stream)

    assert BUILT is not None
    address = ctypes.cast(made.function, ctypes.c_void_p).value or 0
    launch = BUILT(
        made.python,
        EXECUTABLE,
        made.token,
        lambda: made.current,
        look,
        made.failed,
        address,
    )
    for stream in (first, first, second, first):
        made.current = stream  # type: ignore[assignment]
        launch()
    assert [handle for _, handle in made.calls] == [5, 5, 6, 5]
    assert asked == [first, second, first]


def test_the_current_stream_may_be_had_from_a_function_in_c() -> None:
    made, asked = Launches(), []

    @ctypes.PYFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int)
    def where(device: int) -> int:
        asked.append(device)
        return made.current

    launch = _by_function(made, (ctypes.cast(where, ctypes.c_void_p).value, 6))
    launch()
    made.current = 8
    launch(None)
    launch(9)
    assert made.calls == [(EXECUTABLE, one) for one in (3, 8, 9)]
    assert asked == [6, 6]


def test_an_error_of_a_function_in_c_comes_out() -> None:
    made = Launches()
    # Of one argument, which it takes for an object: 0 is none.
    function = ctypes.cast(ctypes.pythonapi.PyLong_AsSsize_t, ctypes.c_void_p).value
    launch = _by_function(made, (function, 0))
    with pytest.raises(SystemError):
        launch()
    assert made.calls == []
    made.turn.take()


@pytest.mark.parametrize("current", [(), (1,), (0, 1), ("1", 1), (1, "1"), (1, 1 << 40)])
def test_what_is_no_function_in_c_is_refused(current: Any) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)):
        _by_function(Launches(), current)


def _by_function(made: Launches, current: Any) -> Any:
    assert BUILT is not None
    address = ctypes.cast(made.function, ctypes.c_void_p).value or 0
    return BUILT(made.python, EXECUTABLE, made.token, current, handle_of, made.failed, address)


def test_a_current_stream_that_is_none_is_refused() -> None:
    made = Launches()
    made.current = "x"  # type: ignore[assignment]
    with pytest.raises(TensorplayError):
        made.launch()
    made.turn.take()


@pytest.mark.parametrize("given", [True, "x", object()])
def test_what_is_no_stream_is_refused(given: Any) -> None:
    made = Launches()
    with pytest.raises(TensorplayError):
        made.launch(given)
    assert (made.calls, made.long_way) == ([], [])
    made.turn.take()


def test_an_interrupt_while_the_stream_is_looked_for_comes_out() -> None:
    made = Launches()

    class Interrupted:
        @property
        def __cuda_stream__(self) -> object:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.launch(Interrupted())
    made.turn.take()


def test_a_launch_by_a_stream_that_goes_is_on_its_own_stream() -> None:
    made = Launches()

    class Going(Stream):
        def __del__(self) -> None:
            made.launch(kept)

    kept = Stream(222)
    made.launch(Going(111))
    made.launch(kept)
    assert [stream for _, stream in made.calls] == [111, 222, 222]


@pytest.mark.parametrize("code", [1, 201, 700])
def test_a_failed_launch_is_python_s_to_mend(code: int) -> None:
    made = Launches()
    made.code = code
    assert made.launch(5) == "failed"
    assert (made.calls, made.failures) == ([(EXECUTABLE, 5)], [(code, 5)])
    made.turn.take()


def test_a_turn_that_is_taken_is_waited_for_by_python() -> None:
    made = Launches()
    made.turn.take()
    assert made.launch() == "by Python"
    assert made.calls == []


def test_the_turn_is_taken_meanwhile_and_given_back() -> None:
    made, seen = Launches(), []

    def during() -> None:
        try:
            made.turn.take()
        except IndexError:
            seen.append("taken")

    made.during = during
    made.launch()
    made.turn.take()
    assert seen == ["taken"]


def test_other_threads_run_meanwhile() -> None:
    made, going = Launches(), threading.Event()

    def during() -> None:
        assert going.wait(10)

    made.during = during
    thread = threading.Thread(target=made.launch)
    thread.start()
    time.sleep(0)
    going.set()
    thread.join(10)
    assert not thread.is_alive()


def test_what_is_not_plain_is_python_s() -> None:
    made = Launches()
    assert made.launch.plain is True
    made.launch.plain = False
    assert made.launch() == "by Python"
    assert made.calls == []
    made.launch.plain = True
    made.launch()
    assert len(made.calls) == 1


def test_who_looks_for_the_stream_may_end_it() -> None:
    made = Launches()

    class Odd:
        @property
        def __cuda_stream__(self) -> tuple[int, int]:
            made.launch.plain = False
            return 0, 5

    assert made.launch(Odd()) == "by Python"
    assert made.calls == []


def test_it_holds_nothing_beyond_itself() -> None:
    made, stream = Launches(), Stream(9)
    made.launch(stream)
    gone, launch = weakref.ref(stream), made.launch
    del stream
    assert gone() is not None
    made.cycle = launch  # type: ignore[attr-defined]
    ended = weakref.ref(made)
    del made, launch
    gc.collect()
    assert gone() is None
    assert ended() is None


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (print,),
        (print, "1", make_token(), print, print, print, 1),
        (print, 1, None, print, print, print, 1),
    ],
)
def test_other_arguments_are_refused(arguments: Any) -> None:
    assert BUILT is not None
    with pytest.raises(TypeError):
        BUILT(*arguments)


def test_an_executable_s_launch_is_in_c_while_it_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    made, rebound = Launches(), []
    address = ctypes.cast(made.function, ctypes.c_void_p).value
    plain, other = object(), object()
    work: Any = SimpleNamespace(
        hot=SimpleNamespace(handle=int, launch=plain),
        addresses={},
        native=SimpleNamespace(
            CUdriverProcAddress_flags=SimpleNamespace(CU_GET_PROC_ADDRESS_DEFAULT=0)
        ),
        cu=SimpleNamespace(cuGetProcAddress=lambda *_, about: (address, 0)),
    )
    executable: Any = SimpleNamespace(
        native=EXECUTABLE, turn=made.turn, current=lambda: 3, target=handle_of, plain=lambda: True
    )
    failed: Any = made.failed
    launch, rebind = direct(work, executable, made.python, rebound.append, failed)
    launch()
    assert made.calls == [(EXECUTABLE, 3)]
    rebind(other)  # type: ignore[arg-type]
    assert launch() == "by Python"  # type: ignore[func-returns-value]
    rebind(plain)  # type: ignore[arg-type]
    launch()
    assert (len(made.calls), rebound) == (2, [other, plain])
    work.hot.handle = list
    assert direct(work, executable, made.python, rebound.append, failed)[0] == made.python
