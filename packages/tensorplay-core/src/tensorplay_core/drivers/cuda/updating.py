"""Refreshes an executable in place, and says in words what keeps it from that."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from tensorplay_core import compiled
from tensorplay_core.protocols import IN_PLACE, Update

from . import topology
from .addresses import bound
from .failures import UPDATE_FAILURE, failure

if TYPE_CHECKING:
    from .captures import CudaTemplate
    from .executable import CudaExecutable
    from .work import Work

__all__ = ["update"]

_ASKED = ("cuCtxGetCurrent", "cuThreadExchangeStreamCaptureMode", "cuGraphExecUpdate")
_RESULTS = (
    "SUCCESS",
    "ERROR",
    "ERROR_TOPOLOGY_CHANGED",
    "ERROR_NODE_TYPE_CHANGED",
    "ERROR_FUNCTION_CHANGED",
    "ERROR_PARAMETERS_CHANGED",
    "ERROR_NOT_SUPPORTED",
    "ERROR_UNSUPPORTED_FUNCTION_CHANGE",
    "ERROR_ATTRIBUTES_CHANGED",
)
"""``CUgraphExecUpdateResult`` by value."""

_REASONS = {
    "ERROR": "the driver gives no reason",
    "ERROR_TOPOLOGY_CHANGED": "nodes or edges differ",
    "ERROR_NODE_TYPE_CHANGED": "a node is of another kind",
    "ERROR_FUNCTION_CHANGED": "a node runs another kernel",
    "ERROR_UNSUPPORTED_FUNCTION_CHANGE": "a node's kernel changed in a way that needs a new graph",
    "ERROR_PARAMETERS_CHANGED": "parameters of a node changed in a way that needs a new graph",
    "ERROR_ATTRIBUTES_CHANGED": "attributes of a node changed in a way that needs a new graph",
    "ERROR_NOT_SUPPORTED": "a node is of a kind or configuration that cannot be updated",
}
_CONDITIONALS = (
    "of conditional nodes the kind and the number of bodies must stay, "
    "and only parameters inside the bodies may change"
)


def update(work: Work, executable: CudaExecutable, template: CudaTemplate) -> Update:
    """Makes ``executable`` run ``template`` in place, or not at all.

    Raises:
        GraphStateError: Either is closed.
        DriverCallFailed: The driver failed in another way than by refusing.
    """
    graph = template.live().graph
    with executable.turn:
        executable.check_open()
        watching = template.owned.watched or executable.template.owned.watched
        if watching:
            return Update(in_place=False, reason="liveness of inputs is checked at each replay")
        code = _refreshed(work, executable, graph)
        if not code:
            executable.adopt(template)
            return IN_PLACE
        with work.inside(executable.device):
            result, node = _told(executable.native, graph)
    if code != UPDATE_FAILURE:
        raise failure(work.native, "cuGraphExecUpdate", code, about=executable.subject)
    reason = _reason(work, executable.template, template, result, node)
    return Update(in_place=False, reason=reason)


def _refreshed(work: Work, executable: CudaExecutable, graph: Any) -> int:
    """What the driver says to the update itself, which it does in relaxed mode."""
    native, device = executable.native, executable.device
    if (refresh := bound(work, compiled.refresher(), _ASKED)) is not None:
        code: int | None = refresh(int(work.context(device)), int(native), int(graph))
        if code is not None:
            return code
    with work.inside(device):
        return int(work.cu.raw("cuGraphExecUpdate")(native, graph)[0])


class _ResultInfo(ctypes.Structure):
    """``CUgraphExecUpdateResultInfo``."""

    _fields_ = (
        ("result", ctypes.c_int),
        ("error_node", ctypes.c_void_p),
        ("error_from_node", ctypes.c_void_p),
    )


def _told(native: Any, graph: Any) -> tuple[str, int]:
    """Why the driver refuses, and at which node: the bindings keep that to themselves.

    The refused update is asked for once more, which changes as little as it did before.
    """
    try:
        call = ctypes.CDLL("libcuda.so.1").cuGraphExecUpdate_v2
    except (OSError, AttributeError):  # Elsewhere than on Linux.
        return "", 0
    info = _ResultInfo()
    call(ctypes.c_void_p(int(native)), ctypes.c_void_p(int(graph)), ctypes.byref(info))
    known = 0 < info.result < len(_RESULTS)
    return _RESULTS[info.result] if known else "", int(info.error_node or 0)


def _reason(work: Work, before: CudaTemplate, after: CudaTemplate, result: str, node: int) -> str:
    found = [_REASONS[result]] if result in _REASONS else []
    nodes = [int(one) for one in after.nodes]
    if node in nodes:
        place = nodes.index(node)
        found.append(f"at node {place}, a {topology.kind_of(work, after.nodes[place])}")
    if not before.closed:
        shapes = [
            topology.read(work, one.graph, one.branches, label=one.subject)
            for one in (before, after)
        ]
        found += topology.count_differences(*shapes)
    if before.branches or after.branches:
        found.append(_CONDITIONALS)
    return "; ".join(found) or _REASONS["ERROR"]
