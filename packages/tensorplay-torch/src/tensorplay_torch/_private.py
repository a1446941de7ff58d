"""Every private name of torch that this package uses, looked up once, with what its absence costs.

Only this module touches ``torch._C``. The rest asks for a name here and does without it, or refuses
with ``PRIVATE[name].lost``, where it is None.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tensorplay_core.errors import UnsupportedByDriver

__all__ = [
    "META_KEY",
    "NAMESPACES",
    "PRIVATE",
    "Private",
    "dispatch_keys",
    "required",
    "summary",
]


@dataclass(frozen=True, slots=True)
class Private:
    """One private name.

    Attributes:
        value: What it is bound to, or None if this torch lacks it.
        lost: What does not work, or works more slowly, without it.
        cuda: It matters on CUDA only.
    """

    value: Callable[..., Any] | None
    lost: str
    cuda: bool = True


def _find(path: str, lost: str, *, cuda: bool = True) -> Private:
    found: Any = torch._C
    for name in path.split("."):
        found = getattr(found, name, None)
    return Private(found if callable(found) else None, lost, cuda)


def _guards() -> Private:
    lost = "signature checks run in Python, about four times slower"
    try:
        from torch._C._dynamo.guards import TensorGuards
    except ImportError:
        return Private(None, lost, cuda=False)
    return Private(TensorGuards, lost, cuda=False)


def _skip_code() -> Private:
    lost = "torch.compile of a model that holds a graphed callable may trace into it and fail"
    try:
        from torch._C._dynamo.eval_frame import (
            _FrameAction,
            _FrameExecStrategy,
            set_code_exec_strategy,
        )
    except ImportError:
        return Private(None, lost, cuda=False)

    def skip_code(code: Any) -> None:
        set_code_exec_strategy(code, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))

    return Private(skip_code, lost, cuda=False)


PRIVATE: dict[str, Private] = {
    "current_raw_stream": _find(
        "_cuda_getCurrentRawStream", "replays on the current stream cost 5 µs more"
    ),
    "synchronize": _find("_cuda_synchronize", "captures take 5 µs longer"),
    "get_device": _find("_cuda_getDevice", "captures take 5 µs longer"),
    "get_stream": _find("_cuda_getCurrentStream", "captures take 40 µs longer"),
    "set_stream": _find("_cuda_setStream", "captures take 40 µs longer"),
    "begin_allocate_stream": _find(
        "_cuda_beginAllocateCurrentStreamToPool",
        "bodies of conditional nodes cannot allocate memory",
    ),
    "begin_allocate_thread": _find(
        "_cuda_beginAllocateCurrentThreadToPool",
        "bodies of conditional nodes cannot allocate memory",
    ),
    "end_allocate": _find(
        "_cuda_endAllocateToPool",
        "bodies of conditional nodes cannot allocate, and a broken capture keeps its pool",
    ),
    "release_pool": _find("_cuda_releasePool", "memory of conditional bodies is not given back"),
    "host_empty_cache": _find(
        "_host_emptyCache", "cached pinned memory is not freed before a capture"
    ),
    "clear_workspaces": _find(
        "_cuda_clearCublasWorkspaces",
        "graphs use work space of cuBLAS that torch may free while they can run",
    ),
    "tensor_guards": _guards(),
    "empty_strided_cuda": _find(
        "_dynamo.guards._empty_strided_cuda", "each result of a staged launch costs 2 µs more"
    ),
    "skip_code": _skip_code(),
    "disable_torch_function": _find(
        "DisableTorchFunction", "no capture can look at its operations", cuda=False
    ),
    "disable_torch_dispatch": _find(
        "_DisableTorchDispatch", "no capture can look at small tensors' values", cuda=False
    ),
    "override_stale_stream": _find(
        "_override_stale_capture_stream",
        "a capture is refused while an autograd graph of an earlier forward is alive",
    ),
    "set_override_stale_stream": _find(
        "_set_override_stale_capture_stream",
        "a capture is refused while an autograd graph of an earlier forward is alive",
    ),
    "warn_of_streams": _find(
        "_warn_on_accumulate_grad_stream_mismatch",
        "warm-ups may warn that gradients are accumulated on another stream",
    ),
    "set_warn_of_streams": _find(
        "_set_warn_on_accumulate_grad_stream_mismatch",
        "warm-ups may warn that gradients are accumulated on another stream",
    ),
    "storage_use_count": _find(
        "_storage_Use_Count",
        "CPU graphs do not reuse memory, and input liveness is not checked on the CPU",
        cuda=False,
    ),
    "force_dispatch_keys": _find(
        "_ForceDispatchKeyGuard", "graphs on the CPU cannot be replayed", cuda=False
    ),
    "set_grad_enabled": _find(
        "_set_grad_enabled", "graphs on the CPU cannot be replayed", cuda=False
    ),
    "set_mkldnn": _find(
        "_set_mkldnn_enabled",
        "a CPU capture forgets that oneDNN was switched off inside it",
        cuda=False,
    ),
    "has_kernel": _find(
        "_dispatch_has_kernel_for_dispatch_key",
        "replays on the CPU copy each result once more",
        cuda=False,
    ),
    "functorch_active": _find(
        "_are_functorch_transforms_active",
        "a graphed callable inside torch.func transforms fails in place of running without graphs",
        cuda=False,
    ),
    "current_autograd_node": _find(
        "_current_autograd_node",
        "annotations of a backward pass are those of the call of backward()",
        cuda=False,
    ),
    "autograd_number": _find(
        "_autograd._get_sequence_nr",
        "annotations of a backward pass are those of the call of backward()",
        cuda=False,
    ),
    "will_execute": _find(
        "_will_engine_execute_node",
        "param_grads='in_graph' cannot tell backward() from torch.autograd.grad()",
        cuda=False,
    ),
    "set_versions": _find(
        "_autograd._unsafe_set_version_counter",
        "a capture leaves the versions of tensors it writes higher than they were",
        cuda=False,
    ),
}
"""The names, by what they do."""

META_KEY = torch._C.DispatchKey.Meta
"""Under this key an operator keeps a meta kernel that is written in Python."""

NAMESPACES = tuple(
    getattr(torch._C, name)
    for name in ("_VariableFunctions", "_nn", "_linalg", "_special", "_fft")
    if hasattr(torch._C, name)
)
"""Where torch keeps its functions of tensors, which cost less to call than their operators do."""


def dispatch_keys() -> tuple[Any, Any, Any]:
    """What dispatch includes and excludes when nothing is switched on, and excludes below autograd.

    The first two are those of a fresh thread; the last leaves out autograd, but not the counting of
    versions.
    """
    keys = torch._C.DispatchKeySet
    included = keys(torch._C.DispatchKey.BackendSelect) | keys(torch._C.DispatchKey.ADInplaceOrView)
    found: list[Any] = []

    def look() -> None:
        found.append(torch._C._dispatch_tls_local_exclude_set())
        with torch._C._AutoDispatchBelowAutograd():
            found.append(torch._C._dispatch_tls_local_exclude_set())

    # A thread of its own, so that it does not matter what is on where this is first called.
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return included, found[0], found[1]


def required(name: str, doing: str) -> Callable[..., Any]:
    """The private function ``name``.

    Raises:
        UnsupportedByDriver: This torch lacks it.
    """
    value = PRIVATE[name].value
    if value is None:
        raise UnsupportedByDriver(
            driver="torch",
            hook=name,
            doing=doing,
            remedy=f"In torch {torch.__version__} {PRIVATE[name].lost}: "
            "report this version, and use one that is listed as tested.",
        )
    return value


def summary() -> str:
    """One line on which names are missing, for ``describe``."""
    wanted = {
        name: one for name, one in PRIVATE.items() if torch.version.cuda is not None or not one.cuda
    }
    missing = [f"{name} ({one.lost})" for name, one in wanted.items() if one.value is None]
    return f"missing: {'; '.join(missing)}" if missing else f"all {len(wanted)} found"
