"""Work to capture on the host, and threads to run it in, for the tests of the host driver."""

import threading
from collections.abc import Callable
from typing import Any

from tensorplay_core import CUDAGraph
from tensorplay_core.protocols import ConditionalKind

IF, WHILE, SWITCH = ConditionalKind.IF, ConditionalKind.WHILE, ConditionalKind.SWITCH


class HostGraph(CUDAGraph):
    driver = "host"


def nothing() -> None:
    pass


def flag(host: Any, value: bool = True) -> Any:
    return host.driver.buffer([value], "?")


def put(buffer: Any, value: Any) -> Callable[[], None]:
    memory = buffer.memory

    def write() -> None:
        memory[0] = value

    return write


def recorder(host: Any, *names: str) -> tuple[list[str], Any]:
    """What ran, and a capture of work that says so."""
    ran: list[str] = []
    with host.capture() as captured:
        for name in names:
            host.driver.launch(ran.append, name)
    return ran, captured


def in_a_thread(work: Callable[[], object]) -> None:
    """Runs ``work`` in another thread, and raises here what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="meddler")
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
