"""What the compiled library has beside launches: tokens, and what it reads of a graph's nodes."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from tensorplay_core import compiled
from tensorplay_core.compiled import counter, functions, make_token, refresher

pytestmark = pytest.mark.skipif(counter() is None, reason=f"the library is {compiled.summary()}")

GRAPH = 0x5EED


def test_nodes_are_counted() -> None:
    number, asked = counter(), []

    @ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)
    )
    def get_nodes(graph: int, nodes: int | None, count: Any) -> int:
        asked.append((graph, nodes))
        count[0] = 5
        return 0 if graph == GRAPH else 900

    assert number is not None
    function = ctypes.cast(get_nodes, ctypes.c_void_p).value or 0
    assert number(function, GRAPH) == 5
    assert number(function, 1) == -1
    assert asked == [(GRAPH, None), (1, None)]
    for arguments in ((), (function,), (function, "1"), ("1", 1), (0, 1), (function, 1 << 70)):
        with pytest.raises((TypeError, ValueError, OverflowError)):
            number(*arguments)  # type: ignore[call-arg, arg-type]


class Nodes:
    """Nodes of a graph as the driver tells of them; ``kinds`` by node, -1 of what it does not know.

    A kernel node ``n`` runs the function ``100 * n``, a node above 9 the kernel without a function.
    """

    def __init__(self, *kinds: int) -> None:
        self.kinds = kinds
        pointers = ctypes.POINTER(ctypes.c_void_p)
        calls: dict[Any, tuple[Any, ...]] = {
            self.get_nodes: (ctypes.c_void_p, pointers, ctypes.POINTER(ctypes.c_size_t)),
            self.get_type: (ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)),
            self.get_parameters: (ctypes.c_void_p, pointers),
        }
        self.kept = [ctypes.CFUNCTYPE(ctypes.c_int, *taken)(call) for call, taken in calls.items()]
        self.addresses = [ctypes.cast(one, ctypes.c_void_p).value or 0 for one in self.kept]

    def get_nodes(self, graph: int, nodes: Any, count: Any) -> int:
        if graph != GRAPH:
            return 900
        room = count[0] if nodes else len(self.kinds)
        count[0] = min(room, len(self.kinds))
        if nodes:
            for index in range(room):
                nodes[index] = index + 1 if index < len(self.kinds) else None
        return 0

    def get_type(self, node: int, kind: Any) -> int:
        kind[0] = self.kinds[node - 1]
        return 400 if kind[0] < 0 else 0

    def get_parameters(self, node: int, words: Any) -> int:
        # The function first, the kernel and the context last: 72 bytes, as CUDA has them.
        if self.kinds[node - 1]:
            return 1
        words[7 if node > 9 else 0] = 100 * node
        return 0

    def run(self, graph: int = GRAPH) -> tuple[int, ...] | None:
        read = functions()
        assert read is not None
        get_nodes, get_type, get_parameters = self.addresses
        return read(get_nodes, get_type, get_parameters, graph)


def test_what_nodes_run_is_read() -> None:
    assert Nodes().run() == ()
    assert Nodes(0, 2, 0, 1).run() == (100, -3, 300, -2)
    for count in (10, 63, 64, 65, 200):
        assert Nodes(*[0] * count).run() == tuple(100 * node for node in range(1, count + 1))


@pytest.mark.parametrize("unknown", [4, 13, -1], ids=["graph", "conditional", "refused"])
def test_what_nodes_run_is_not_told_of_graphs_in_graphs(unknown: int) -> None:
    assert Nodes(0, unknown, 0).run() is None


def test_what_nodes_run_is_not_told_of_what_is_no_graph() -> None:
    assert Nodes(0).run(graph=1) is None
    read, (get_nodes, get_type, get_parameters) = functions(), Nodes(0).addresses
    assert read is not None
    for arguments in ((), (get_nodes, get_type, get_parameters), (0, 0, 0, 1), ("1", 1, 1, 1)):
        with pytest.raises((TypeError, ValueError)):
            read(*arguments)


class Updates:
    """An executable's driver: ``current`` is the context, ``mode`` the thread's capture mode."""

    def __init__(self, *, current: int = 77, code: int = 0, refuses: bool = False) -> None:
        self.current, self.code, self.refuses, self.mode = current, code, refuses, 0
        self.asked: list[tuple[int, int, int]] = []
        words = ctypes.POINTER(ctypes.c_uint64)
        calls: dict[Any, tuple[Any, ...]] = {
            self.get_current: (words,),
            self.exchange: (ctypes.POINTER(ctypes.c_int),),
            self.update: (ctypes.c_uint64, ctypes.c_uint64, words),
        }
        self.kept = [ctypes.CFUNCTYPE(ctypes.c_int, *taken)(call) for call, taken in calls.items()]
        self.addresses = [ctypes.cast(one, ctypes.c_void_p).value or 0 for one in self.kept]

    def get_current(self, context: Any) -> int:
        context[0] = self.current
        return 0 if self.current else 3

    def exchange(self, mode: Any) -> int:
        if not self.refuses:
            self.mode, mode[0] = mode[0], self.mode
        return int(self.refuses)

    def update(self, executable: int, graph: int, told: Any) -> int:
        self.asked.append((executable, graph, self.mode))
        told[0], told[1], told[2] = 2, 3, 4  # As much as the driver tells.
        return self.code

    def run(self) -> int | None:
        refresh = refresher()
        assert refresh is not None
        get_current, exchange, update = self.addresses
        return refresh(get_current, exchange, update, 77, 8, GRAPH)


@pytest.mark.parametrize("code", [0, 910])
def test_an_executable_is_updated_in_relaxed_mode(code: int) -> None:
    driver = Updates(code=code)
    assert driver.run() == code
    assert driver.asked == [(8, GRAPH, 2)]
    assert driver.mode == 0


@pytest.mark.parametrize("how", [{"current": 78}, {"current": 0}, {"refuses": True}])
def test_an_update_in_another_context_is_left_alone(how: dict[str, Any]) -> None:
    driver = Updates(**how)
    assert driver.run() is None
    assert not driver.asked
    assert driver.mode == 0


def test_an_update_takes_addresses_alone() -> None:
    refresh, addresses = refresher(), Updates().addresses
    assert refresh is not None
    for arguments in ((), (*addresses, 77, 8), (0, 0, 0, 77, 8, 9), (*addresses, "77", 8, 9)):
        with pytest.raises((TypeError, ValueError)):
            refresh(*arguments)


def test_a_token_is_taken_once_and_given_back_as_often_as_one_likes() -> None:
    token = make_token()
    assert token is not None
    flag = ctypes.c_char.from_address(token.flag)
    assert flag.value == b"\x01"
    token.take()
    assert flag.value == b"\x00"
    with pytest.raises(IndexError):
        token.take()
    token.give(None)
    token.give(None)
    token.take()
    with pytest.raises(IndexError):
        token.take()
    with pytest.raises(TypeError):
        type(token)(1)  # type: ignore[call-arg]
