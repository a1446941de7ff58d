"""What the CUDA driver does on which version, seen in its native calls. No GPU is needed."""

from types import SimpleNamespace
from typing import Any

import pytest

from tensorplay_core.drivers.cuda import gaps, kernels, topology, updating
from tensorplay_core.drivers.cuda.arrays import DeviceArray
from tensorplay_core.drivers.cuda.captures import Conditional, CudaCapture
from tensorplay_core.drivers.cuda.conditional import Conditionals
from tensorplay_core.drivers.cuda.contexts import CudaDevice
from tensorplay_core.errors import ConditionalError, UnsupportedByDriver
from tensorplay_core.protocols import ConditionalKind

from .device_arrays import own
from .noted_driver import Driver, native

GPU = CudaDevice(0)


def flag(typestr: str = "|b1") -> DeviceArray:
    return own((1,), typestr)


class Asked:
    """``CUgraphNodeParams``, whose bodies are there as soon as they are asked for."""

    def __init__(self) -> None:
        self.type: Any = None
        self.conditional = Fields()


class Fields:
    handle: Any
    type: Any
    ctx: Any
    size = 0

    @property
    def phGraph_out(self) -> list[str]:
        return [f"body {place}" for place in range(self.size)]


def made(version: int, kind: ConditionalKind, branches: int, typestr: str = "|b1") -> Any:
    """The driver's calls for one conditional, and the bodies it gave."""
    fake = Driver(version)
    fake.CUgraphNodeParams = Asked  # type: ignore[attr-defined]
    driver = Conditionals(fake)
    capture = CudaCapture(device=GPU, stream=7, graph="graph", id=9)
    fake.made.clear()
    bodies = driver.tensorplay_conditional_open(capture, kind, flag(typestr), branches, False, None)
    return fake, bodies


@pytest.mark.parametrize(
    ("version", "nodes", "sizes"),
    [(12040, 2, [1, 1]), (12090, 2, [1, 1]), (13000, 1, [2]), (13020, 1, [2])],
)
def test_if_else_is_one_node_from_the_version_where_that_is_sound(
    version: int, nodes: int, sizes: list[int]
) -> None:
    fake, bodies = made(version, ConditionalKind.IF, 2)
    assert [body.role for body in bodies] == ["then", "else"]
    order = fake.names("cuLaunchKernel", "cuGraphAddNode")
    # Every sample comes before every node: a body may rewrite the predicate.
    assert order == ["cuLaunchKernel"] * nodes + ["cuGraphAddNode"] * nodes
    assert fake.sizes == sizes
    conditionals = {id(body.node) for body in bodies}
    assert len(conditionals) == nodes


def test_a_conditional_becomes_the_frontier() -> None:
    fake, bodies = made(13000, ConditionalKind.WHILE, 1)
    assert fake.frontier == [bodies[0].node.node]


@pytest.mark.parametrize(("version", "seeds"), [(12040, 1), (12070, 1), (12080, 0), (13000, 0)])
def test_bodies_get_an_empty_node_where_empty_ones_hang(version: int, seeds: int) -> None:
    fake, (body,) = made(version, ConditionalKind.IF, 1)
    assert fake.names("cuGraphAddEmptyNode") == ["cuGraphAddEmptyNode"] * seeds
    assert len(body.seed) == seeds


def test_a_switch_needs_its_version() -> None:
    with pytest.raises(UnsupportedByDriver) as caught:
        made(12070, ConditionalKind.SWITCH, 3, "<i4")
    assert "12.8" in str(caught.value)
    _, bodies = made(12080, ConditionalKind.SWITCH, 3, "<i4")
    assert [body.role for body in bodies] == ["case 0", "case 1", "case 2"]


def test_conditionals_need_their_version() -> None:
    with pytest.raises(UnsupportedByDriver) as caught:
        made(12030, ConditionalKind.IF, 1)
    assert caught.value.driver == "cuda"
    assert "12.4" in str(caught.value)


def test_a_condition_is_set_in_while_bodies_alone() -> None:
    driver = Conditionals(Driver(13000))
    (body,) = made(13000, ConditionalKind.IF, 1)[1]
    with pytest.raises(ConditionalError):
        driver.tensorplay_conditional_set(body, flag())


def test_facts_say_what_each_floor_allows() -> None:
    old, new = (Conditionals(Driver(version)) for version in (12040, 13020))
    for driver in (old, new):
        driver.device_count = 0
    told, told_newer = old.describe(), new.describe()
    assert told["CUDA driver"] == "12.4"
    assert "refused below 12.8" in told["switch nodes"]
    assert "two if nodes" in told["if/else"]
    assert set(told_newer.values()) >= {"13.2", "native"}
    assert "below" not in "".join(told_newer.values())


def test_the_bits_of_a_condition_are_apart() -> None:
    bits = (kernels.NEGATE, kernels.ALWAYS, kernels.COUNTED, kernels.RESTART)
    assert sum(bits) == 15
    assert len(set(bits)) == 4


def test_the_results_of_an_update_are_the_drivers() -> None:
    for value, name in enumerate(updating._RESULTS):
        known = native.CUgraphExecUpdateResult(value)
        assert known.name == f"CU_GRAPH_EXEC_UPDATE_{name}"
    assert set(updating._REASONS) == set(updating._RESULTS) - {"SUCCESS"}


def test_a_captures_inner_conditionals_are_found() -> None:
    inner = Conditional(kind=ConditionalKind.IF, node=2, handle=0, predicate=None)
    outer = Conditional(kind=ConditionalKind.WHILE, node=1, handle=0, predicate=None)
    (body,) = made(13000, ConditionalKind.IF, 1)[1]
    body.conditionals.append(inner)
    outer.bodies = (body,)
    assert list(outer.walk()) == [outer, inner]


@pytest.mark.parametrize(("version", "told"), [(13000, False), (13010, True)])
def test_profilers_numbers_are_told_from_their_version_on(version: int, told: bool) -> None:
    driver = Driver(version)
    driver.answers |= {
        "cuGraphGetNodes": lambda graph, count=0: ([11, 12], 2),
        "cuGraphGetEdges": lambda graph, count=0: ([], [], [], 0),
        "cuGraphNodeGetType": lambda node: native.CUgraphNodeType.CU_GRAPH_NODE_TYPE_EMPTY,
        "cuGraphNodeGetToolsId": lambda node: 3 << 32 | node,
        "cuGraphExecGetId": lambda executable: 8,
    }
    plugin = Conditionals(driver)
    shape = topology.read(plugin, "graph", {}, label="graph")
    numbers = [node.attributes.get("tools_id") for node in shape.nodes]
    assert numbers == ([3 << 32 | 11, 3 << 32 | 12] if told else [None, None])
    executable = SimpleNamespace(native="executable", subject="an executable")
    assert plugin.tensorplay_executable_id(executable) == (8 if told else 0)


def test_nodes_are_counted_by_one_call() -> None:
    driver = Driver(13000)
    driver.answers["cuGraphGetNodes"] = lambda graph, count=0: ([], 7)
    plugin = Conditionals(driver)
    capture = CudaCapture(device=GPU, stream=5, graph="graph")
    driver.made.clear()
    assert plugin.tensorplay_graph_mark(capture) == 7
    assert [name for name, _ in driver.made] == ["cuGraphGetNodes"]


ROOT, BODY = 100, 200


@pytest.fixture(params=["in Python", "in C"])
def counted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets graphs be counted in one of both ways, by what a dict holds."""
    made: dict[int, list[str] | None] = {ROOT: ["a"], BODY: []}

    def count(graph: int) -> int:
        nodes = made[graph]
        return -1 if nodes is None else len(nodes)

    in_c = request.param == "in C"
    monkeypatch.setattr(gaps, "bound", lambda work, function, names: count if in_c else None)
    return made


def test_nodes_between_two_operations_are_found_and_read(counted: Any) -> None:
    driver, made = Driver(13000), counted
    driver.answers["cuGraphGetNodes"] = lambda graph, count=0: (
        made[graph][:count],
        len(made[graph]),
    )
    plugin = Conditionals(driver)
    driver.answers["cuStreamGetCaptureInfo"] = lambda stream: (1, 9, ROOT, [], [], 0)
    # What the driver adopts names the same graph by another object.
    capture = CudaCapture(device=GPU, stream=5, graph=object())
    found, read = plugin.gaps(5), []
    found.follow(capture)

    def words(work: Any, nodes: Any) -> set[int]:
        read.extend(nodes)
        return {7}

    found.pass_over()
    found.look()
    assert not found
    made[ROOT] += ["foreign 1", "foreign 2"]
    found.look()
    made[ROOT].append("ours")
    found.pass_over()
    capture.open.append(SimpleNamespace(graph=BODY))  # type: ignore[arg-type]
    made[BODY].append("foreign in the body")
    found.look()
    capture.open.clear()
    found.look()
    assert found
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tensorplay_core.drivers.cuda.operands.mentioned_by", words)
        assert found.words() == {7}
    assert read == ["foreign 1", "foreign 2", "foreign in the body"]


def test_nodes_of_a_broken_capture_are_not_counted(counted: Any) -> None:
    driver = Driver(13000)
    plugin = Conditionals(driver)
    counted[ROOT] = None
    driver.__dict__["cuGraphGetNodes"] = lambda graph, count=0: (900, None, None)
    driver.answers["cuStreamGetCaptureInfo"] = lambda stream: (2, 9, ROOT, [], [], 0)
    found = plugin.gaps(5)
    found.look()
    found.pass_over()
    assert not found


def test_a_capture_that_is_broken_already_has_no_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, asked = Driver(13000), []
    driver.answers["cuStreamGetCaptureInfo"] = lambda stream: (2, 0, None, None, None, 0)
    monkeypatch.setattr(gaps, "bound", lambda *_: lambda graph: asked.append(graph) or -1)
    found = Conditionals(driver).gaps(5)
    found.look()
    assert (bool(found), set(asked)) == (False, {0})


def test_an_adopted_capture_makes_a_pool_when_it_wants_one() -> None:
    made: list[Any] = []

    def make() -> Any:
        made.append(object())
        return made[-1]

    capture = CudaCapture(device=GPU, stream=5, graph=ROOT, make_pool=make)
    assert made == []
    assert capture.pool is capture.pool is made[0]
    assert made[0] in capture.owned.strong
    capture.finish()
    with pytest.raises(IndexError):
        _ = capture.pool
    assert len(made) == 1
