"""``make_graphed_callables``: modules and functions whose forward and backward are replays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from torch import nn

from tensorplay_core.errors import ArgumentTypeError, GraphStateError
from tensorplay_core.protocols import CaptureMode
from tensorplay_core.signature import a_type
from tensorplay_torch.tracking.untraced import untraced

from .candidate import Candidate
from .eligibility import DDP_WARMUP, is_ddp
from .group import Group
from .nesting import device_of, inside
from .serving import Graphed
from .settings import Settings, checked_settings, unfit

__all__ = [
    "already_graphed",
    "graph_together",
    "make_graphed_callables",
    "refuse_graphed",
    "release",
]


def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: object = None,
    capture_error_mode: CaptureMode = "global",
    *,
    sample_kwargs: Any = None,
    param_grads: Literal["autograd", "in_graph"] = "autograd",
    outputs: Literal["copy", "alias"] = "copy",
    slots: int = 1,
    retain_graph: bool = False,
    on_change: Literal["raise", "recapture"] = "raise",
) -> Any:
    """Replaces the forward and the backward of modules or functions by replays of CUDA graphs.

    A call gives what the callable itself would give, bit for bit: results, gradients, buffers and
    random numbers. What a graph cannot give is refused by name, here or at the call. On the CPU,
    core's host driver replays.

    ``callables`` are warmed up on the capture stream and captured into one pool, forwards in order
    and backwards in reverse; what that changes is put back. Where grad mode is off only forwards
    are captured, and backwards at the first call with it on; the forward for calls with it off is
    captured at the first of those. Call a tuple's callables in the tuple's order.

    Args:
        callables: A module or function, or a tuple of them in the order of their calls. For a
            DistributedDataParallel module, the one inside it is graphed.
        sample_args: A tuple of arguments for it, or a tuple of such tuples: tensors of one device
            whose shapes, strides, dtypes and ``requires_grad`` are those of later calls, in any
            nesting of tuples, lists, dicts and dataclasses. Other values are fixed.
        num_warmup_iters: Calls before the capture, backward included.
        allow_unused_input: Accept inputs and parameters that require grad and have no part in the
            outputs: they get no gradient.
        pool: As for ``graph()``: None, an id, a graph, a ``torch.cuda.MemPool``.
        capture_error_mode: As for ``graph()``.
        sample_kwargs: Keyword arguments of the sample call, or a tuple of them.
        param_grads: ``"autograd"`` returns parameters' gradients to autograd, so that hooks and
            DistributedDataParallel see them. ``"in_graph"`` adds them to ``.grad`` inside the
            captured backward, for much less time; each ``.grad`` is then memory that later
            backwards write.
        outputs: ``"copy"`` hands back tensors that later calls do not change. ``"alias"`` hands
            back the graph's own, which the next call overwrites.
        slots: How many forwards may be in flight before their backwards.
        retain_graph: Keep what a second backward through one call needs.
        on_change: What a call does when a parameter was replaced, moved or (un)frozen since:
            ``"raise"``, or ``"recapture"``. When it notices is in docs/guide/graphed.md.

    Returns:
        A module itself, with its ``forward`` replaced; a function for a function; a tuple for a
        tuple.

    Raises:
        ArgumentError: Arguments that do not fit together, or that no graph could take.
        CaptureError: A callable that cannot be captured; what, where and what to do.
        GraphStateError: A module is graphed already.
        PoolMismatch: The pool is another device's.
    """
    several = isinstance(callables, tuple | list)
    functions: tuple[Any, ...] = tuple(callables) if several else (callables,)
    every_args, every_kwargs = _samples(functions, sample_args, sample_kwargs, several=several)
    settings = checked_settings(
        num_warmup_iters=num_warmup_iters,
        allow_unused_input=allow_unused_input,
        capture_error_mode=capture_error_mode,
        param_grads=param_grads,
        outputs=outputs,
        slots=slots,
        retain_graph=retain_graph,
        on_change=on_change,
    )
    made = graph_together(functions, every_args, every_kwargs, settings, pool)
    handed = tuple(
        function if isinstance(function, nn.Module) else _function(one)
        for function, one in zip(functions, made, strict=True)
    )
    return handed if several else handed[0]


def graph_together(
    functions: Sequence[Callable[..., Any]],
    every_args: Sequence[tuple[Any, ...]],
    every_kwargs: Sequence[Mapping[str, Any]],
    settings: Settings,
    pool: object,
) -> list[Graphed]:
    """Captures ``functions`` as one group; modules among them call their graphs from then on.

    Raises:
        ArgumentError: Arguments that do not fit together, or that no graph could take.
        CaptureError: A callable that cannot be captured.
        GraphStateError: A module is graphed already.
        PoolMismatch: The pool is another device's.
    """
    for function in functions:
        refuse_graphed(function)
        _refuse_under_ddp(function, settings)
    if not functions:
        raise unfit("no callables", "there is none", "Pass at least one.")
    if inside(device_of([list(every_args), list(every_kwargs)])):
        raise GraphStateError(
            doing="graphing",
            subject=_named(functions[0]),
            met="this thread is capturing already, differentiates forward, or is inside a "
            "torch.func transform",
            remedy="Graph callables before; in there, call them without graphs.",
        )
    candidates = [
        Candidate(function, args, kwargs)
        for function, args, kwargs in zip(functions, every_args, every_kwargs, strict=True)
    ]
    modules = [one.module for one in candidates if one.is_module]
    if len(set(map(id, modules))) != len(modules):
        raise unfit(
            "callables",
            "one module is in the tuple twice",
            "Graph it once, with slots=2 for two calls before their backwards.",
        )
    group = Group(candidates, settings, pool)
    group.capture()
    made = [Graphed(group, place, settings.recapture) for place in range(len(functions))]
    for candidate, one in zip(candidates, made, strict=True):
        if candidate.is_module:
            candidate.put(one)
    return made


def release(graphed: Any) -> Any:
    """Ends the graphs of what ``make_graphed_callables`` or ``graphed`` returned.

    Args:
        graphed: A module, a function, or a tuple of them.

    Returns:
        The callable without graphs: the module itself with its own forward, or the function. A
        tuple for a tuple. Memory is back once the last of those graphed together is released and
        no tensor of theirs is left.

    Raises:
        ArgumentTypeError: It is not graphed.
    """
    if isinstance(graphed, tuple | list):
        return tuple(release(one) for one in graphed)
    if isinstance(graphed, nn.Module):
        serving = _graphed(graphed)
        if serving is not None:
            serving.release()
            serving.candidate.put_back()
            return graphed
    elif hasattr(graphed, "graphed") and hasattr(graphed, "original"):
        graphed.release()
        return graphed.original
    raise ArgumentTypeError(
        doing="releasing",
        subject=_named(graphed),
        met="it is not graphed",
        remedy="Pass what make_graphed_callables or graphed returned.",
    )


def _samples(
    functions: Sequence[Any], sample_args: Any, sample_kwargs: Any, *, several: bool
) -> tuple[list[tuple[Any, ...]], list[Mapping[str, Any]]]:
    every_args = list(sample_args) if several else [sample_args]
    if sample_kwargs is None:
        sample_kwargs = [None] * len(functions) if several else None
    every_kwargs = list(sample_kwargs) if several else [sample_kwargs]
    for name, given in (("sample_args", every_args), ("sample_kwargs", every_kwargs)):
        if len(given) != len(functions):
            raise unfit(
                f"{len(functions)} callables",
                f"{name} has {len(given)} entries",
                f"Pass a tuple with the {name.removeprefix('sample_')} of each callable, in order.",
            )
    for args in every_args:
        if not isinstance(args, tuple | list):
            raise ArgumentTypeError(
                doing="graphing",
                subject="callables",
                met=f"sample_args for one callable is {a_type(args)}",
                remedy="Pass its positional arguments as a tuple: (x,), and for a tuple of "
                "callables a tuple of such tuples.",
            )
    for kwargs in every_kwargs:
        if kwargs is not None and not isinstance(kwargs, Mapping):
            raise ArgumentTypeError(
                doing="graphing",
                subject="callables",
                met=f"sample_kwargs for one callable is {a_type(kwargs)}",
                remedy="Pass its keyword arguments as a dict, or None.",
            )
    return [tuple(args) for args in every_args], [dict(kwargs or {}) for kwargs in every_kwargs]


def refuse_graphed(function: Any) -> None:
    """Refuses what cannot be called, and what is graphed already.

    Raises:
        ArgumentTypeError: It is not callable.
        GraphStateError: It is graphed.
    """
    if not callable(function):
        raise ArgumentTypeError(
            doing="graphing",
            subject=repr(function),
            met=f"it is {a_type(function)}",
            remedy="Pass a module or another callable, or a tuple of them.",
        )
    if _graphed(function) is not None:
        raise already_graphed(function)


def already_graphed(function: Any) -> GraphStateError:
    """The error for what is graphed twice."""
    return GraphStateError(
        doing="graphing",
        subject=_named(function),
        met="it is graphed already",
        remedy="Call tensorplay_torch.release(it) first.",
    )


def _graphed(value: Any) -> Graphed | None:
    """What serves the calls of what a user holds; None if nothing does."""
    if is_ddp(value):
        value = value.module
    if isinstance(value, nn.Module):
        found = vars(value).get("forward")
    else:
        found = getattr(value, "graphed", None)
    return found if isinstance(found, Graphed) else None


def _named(value: Any) -> str:
    if isinstance(value, nn.Module):
        return f"module {type(value).__name__}"
    return getattr(value, "__qualname__", None) or repr(value)


def _refuse_under_ddp(function: Any, settings: Settings) -> None:
    if not is_ddp(function):
        return
    if settings.warmup < DDP_WARMUP:
        raise unfit(
            "a DistributedDataParallel module",
            f"num_warmup_iters is {settings.warmup}",
            f"Pass num_warmup_iters={DDP_WARMUP} or more; or graph sections of the network before "
            "they are wrapped.",
        )
    if settings.in_graph:
        raise unfit(
            "a DistributedDataParallel module",
            "param_grads is 'in_graph', where its reducer would see no gradient",
            "Pass param_grads='autograd'.",
        )


def _function(graphed: Graphed) -> Callable[..., Any]:
    """``graphed`` as a function, for those who were given one."""

    @untraced
    @functools.wraps(graphed.original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return graphed(*args, **kwargs)

    call.graphed = graphed  # type: ignore[attr-defined]
    call.original = graphed.original  # type: ignore[attr-defined]
    call.release = graphed.release  # type: ignore[attr-defined]
    return call
