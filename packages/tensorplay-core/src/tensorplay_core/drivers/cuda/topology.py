"""Reads a native graph into plain data: nodes, names, sizes, edges, bodies."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from tensorplay_core import compiled
from tensorplay_core.errors import DriverError
from tensorplay_core.topology import Body, Node, Topology

from . import floors
from .addresses import bound
from .modules import layout

if TYPE_CHECKING:
    from .captures import Branches, CudaTemplate
    from .work import Work

__all__ = [
    "count",
    "count_differences",
    "functions",
    "kind_of",
    "kernel_name",
    "node_words",
    "packed",
    "read",
    "tells_ids",
]

_KINDS = {
    "KERNEL": "kernel",
    "MEMCPY": "memcpy",
    "MEMSET": "memset",
    "HOST": "host",
    "GRAPH": "child",
    "EMPTY": "empty",
    "WAIT_EVENT": "event_wait",
    "EVENT_RECORD": "event_record",
    "MEM_ALLOC": "alloc",
    "MEM_FREE": "free",
    "CONDITIONAL": "conditional",
}
_ROLES = {
    "if": ("then", "else"),
    "while": ("body",),
    "switch": (),
}


def kind_of(work: Work, node: Any) -> str:
    """The kind of a node in the words of ``topology.Node``; the driver's own for others."""
    native = str(work.cu.cuGraphNodeGetType(node).name).removeprefix("CU_GRAPH_NODE_TYPE_")
    return _KINDS.get(native, native.lower())


def read(work: Work, graph: Any, branches: Mapping[int, Branches], *, label: str) -> Topology:
    """Everything about a graph, conditional bodies and child graphs included.

    Args:
        work: The driver.
        graph: The native graph.
        branches: What is known of its conditional nodes, by native node.
        label: What it is called.
    """
    nodes = work.cu.nodes(graph, about=label)
    place = {int(node): index for index, node in enumerate(nodes)}
    return Topology(
        nodes=tuple(_node(work, node, index, branches) for index, node in enumerate(nodes)),
        edges=tuple(
            (place[int(before)], place[int(after)])
            for before, after in work.cu.edges(graph, about=label)
        ),
        label=label,
    )


_COUNTED = ("cuGraphGetNodes",)
_ASKED = ("cuGraphGetNodes", "cuGraphNodeGetType", "cuGraphKernelNodeGetParams")


def count(work: Work, template: CudaTemplate) -> int:
    """How many nodes a graph has at its top level."""
    number = bound(work, compiled.counter(), _COUNTED)
    if number is not None and (found := number(int(template.graph))) >= 0:
        return found  # type: ignore[no-any-return]
    return work.cu.count_nodes(template.graph, about=template.subject)


def functions(work: Work, graph: Any, nodes: Callable[[], Iterable[Any]]) -> tuple[int, ...] | None:
    """What each node runs, as handles of functions and as kinds; None if a graph is among them.

    It costs much less than ``read``, and next to nothing where that is compiled.

    Args:
        work: The driver.
        graph: The native graph.
        nodes: Gives its nodes.
    """
    if (read := bound(work, compiled.functions(), _ASKED)) is not None:
        return read(int(graph))  # type: ignore[no-any-return]
    kinds = work.native.CUgraphNodeType
    graphs = (
        kinds.CU_GRAPH_NODE_TYPE_GRAPH,
        getattr(kinds, "CU_GRAPH_NODE_TYPE_CONDITIONAL", None),
    )
    kind_of_node, function = work.cu.raw("cuGraphNodeGetType"), work.hot.function
    found = []
    for node in nodes():
        runs = function(node)
        if not runs:
            code, kind = kind_of_node(node)
            if code or kind in graphs or kind == kinds.CU_GRAPH_NODE_TYPE_KERNEL:
                return None
            runs = -1 - int(kind)
        found.append(runs)
    return tuple(found)


def _node(work: Work, node: Any, index: int, branches: Mapping[int, Branches]) -> Node:
    kind = kind_of(work, node)
    name = kind
    attributes: dict[str, Any] = {}
    bodies: tuple[Body, ...] = ()
    try:
        if kind == "kernel":
            parameters = work.cu.cuGraphKernelNodeGetParams(node)
            name, attributes = kernel_name(work, parameters), _shape(parameters)
        elif kind == "memcpy":
            attributes = _copied(work.cu.cuGraphMemcpyNodeGetParams(node))
        elif kind == "memset":
            attributes = _filled(work.cu.cuGraphMemsetNodeGetParams(node))
        elif kind == "child":
            inner = work.cu.cuGraphChildGraphNodeGetGraph(node)
            child = read(work, inner, branches, label="child")
            bodies = (Body(role="child", topology=child),)
        elif kind == "conditional":
            name, bodies = _branches(work, node, branches)
            if not bodies:
                attributes = {"bodies": "unknown: another library made this node"}
    except DriverError as error:
        # A node of a kind or memory that this call cannot describe is still a node.
        attributes = {"unreadable": error.met}
    if tells_ids(work):
        attributes["tools_id"] = int(work.cu.cuGraphNodeGetToolsId(node))
    return Node(index=index, kind=kind, name=name, attributes=attributes, bodies=bodies)


def tells_ids(work: Work) -> bool:
    """True if the driver tells the numbers by which profilers know nodes and executables."""
    return work.version >= floors.TOOLS_IDS and work.cu.has("cuGraphNodeGetToolsId")


def _branches(
    work: Work, node: Any, branches: Mapping[int, Branches]
) -> tuple[str, tuple[Body, ...]]:
    known = branches.get(int(node))
    if known is None:
        if work.version < floors.NODE_PARAMETERS or not work.cu.has("cuGraphNodeGetParams"):
            return "conditional", ()
        told = work.cu.cuGraphNodeGetParams(node).conditional
        kind = told.type.name.removeprefix("CU_GRAPH_COND_TYPE_").lower()
        graphs = list(told.phGraph_out or ())
        roles = _ROLES[kind] or [f"case {place}" for place in range(len(graphs))]
        pairs: Iterable[tuple[str, Any]] = zip(roles, graphs, strict=False)
    else:
        kind, pairs = known
    return kind, tuple(
        Body(role=role, topology=read(work, graph, branches, label=role)) for role, graph in pairs
    )


def kernel_name(work: Work, parameters: Any) -> str:
    """The name of a kernel node's function, demangled where the C++ runtime library is there."""
    if int(parameters.func):
        name = work.cu.cuFuncGetName(parameters.func)
    else:
        name = work.cu.cuKernelGetName(parameters.kern)
    return _demangled(bytes(name))


@cache
def _demangled(name: bytes) -> str:
    plain = name.decode()
    if not plain.startswith("_Z"):
        return plain
    try:
        demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except (OSError, AttributeError):  # Elsewhere than on Linux.
        return plain
    demangle.restype = ctypes.c_void_p
    status = ctypes.c_int(-1)
    found = demangle(name, None, None, ctypes.byref(status))
    if not found:
        return plain
    try:
        return (ctypes.string_at(found)).decode()
    finally:
        free = ctypes.CDLL(None).free
        free.argtypes = [ctypes.c_void_p]
        free(found)


def _shape(parameters: Any) -> dict[str, Any]:
    return {
        "grid": (parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ),
        "block": (parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ),
        "shared_bytes": parameters.sharedMemBytes,
    }


def _copied(parameters: Any) -> dict[str, Any]:
    def where(kind: Any) -> str:
        return str(kind.name).removeprefix("CU_MEMORYTYPE_").lower()

    return {
        "bytes": parameters.WidthInBytes * max(parameters.Height, 1) * max(parameters.Depth, 1),
        "from": where(parameters.srcMemoryType),
        "to": where(parameters.dstMemoryType),
    }


def _filled(parameters: Any) -> dict[str, Any]:
    size = parameters.elementSize * parameters.width * max(parameters.height, 1)
    return {"bytes": size, "value": parameters.value}


def node_words(work: Work, node: Any) -> Iterator[int]:
    """Every 64-bit value in a node's parameters, where a device address may stand."""
    kind = kind_of(work, node)
    if kind == "kernel":
        parameters = work.cu.cuGraphKernelNodeGetParams(node)
        yield from _kernel_words(work, parameters)
    elif kind == "memcpy":
        copied = work.cu.cuGraphMemcpyNodeGetParams(node)
        yield from (int(copied.srcDevice), int(copied.dstDevice))
    elif kind == "memset":
        yield int(work.cu.cuGraphMemsetNodeGetParams(node).dst)


def _kernel_words(work: Work, parameters: Any) -> Iterator[int]:
    if parameters.kernelParams:
        if int(parameters.func):
            sizes = layout(work, "cuFuncGetParamInfo", parameters.func)
        else:
            sizes = layout(work, "cuKernelGetParamInfo", parameters.kern)
        addresses = (ctypes.c_void_p * max(len(sizes), 1)).from_address(
            int(parameters.kernelParams)
        )
        for address, (_, size) in zip(addresses, sizes, strict=False):
            if address:
                yield from _words(address, size)
    elif parameters.extra:
        arguments = packed(int(parameters.extra))
        yield from memoryview(arguments[: len(arguments) // 8 * 8]).cast("Q")


def packed(extra: int) -> bytes:
    """The arguments of a launch that packs them: pairs of a key and a pointer, up to a zero key."""
    pair, buffer, size = extra, 0, 0
    while True:
        key, value = (ctypes.c_uint64 * 2).from_address(pair)
        if key == 1:
            buffer = value
        elif key == 2:
            size = ctypes.c_size_t.from_address(value).value
        else:
            break
        pair += 16
    return ctypes.string_at(buffer, size) if buffer else b""


def _words(address: int, size: int) -> Iterator[int]:
    if size >= 8:
        yield from (ctypes.c_uint64 * (size // 8)).from_address(address)


def count_differences(before: Topology, after: Topology) -> list[str]:
    """Kinds of which the two have different numbers of nodes: ``"kernel: 3 before, 4 after"``."""
    one, other = before.kinds(), after.kinds()
    return [
        f"{kind}: {one[kind]} before, {other[kind]} after"
        for kind in sorted(Counter(one) | Counter(other))
        if one[kind] != other[kind]
    ]
