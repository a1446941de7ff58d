"""One callable that is to be graphed: what it is, how it was called, and what it may run on."""

from __future__ import annotations

import copy
import functools
import types
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tensorplay_core.errors import (
    ArgumentError,
    CaptureError,
    GraphStateError,
    OperationRefused,
)
from tensorplay_torch.resources.devices import resolve_device
from tensorplay_torch.tracking.ran import Ran, Runs
from tensorplay_torch.tracking.reached import Reached, compile_contexts

from .arguments import Arguments
from .eligibility import admit, is_ddp, plain_tensor

__all__ = ["Candidate", "forward_of"]

LEAF_WRITTEN = "leaf Variable that requires grad"


class Candidate:
    """A callable with a sample call.

    A module is held weakly: the graphs hang on it, and go when it does.

    Args:
        function: A module or any callable.
        args: Positional arguments of the sample call.
        kwargs: Its keyword arguments.

    Attributes:
        is_module: A module's forward is what is run, so that its own hooks stay outside.
        subject: What errors call it.
        arguments: The form of the call.
        device: Where everything is.
        compiled: There are regions in it that torch.compile compiled.
        runs: What ran in its captures.

    Raises:
        ArgumentError: An argument that a graph cannot stand for.
        CaptureError: It holds what cannot be graphed.
    """

    def __init__(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        module = _graphed_module(function)
        self.is_module = module is not None
        self.subject = _called(function)
        self._module = weakref.ref(module) if module is not None else None
        self._on_instance = False
        self._plain = function
        self.runs = Runs()
        if module is not None:
            # A forward that somebody put on the instance, or that of its class.
            self._on_instance = _own_forward(module)
            self._plain = vars(module)["forward"] if self._on_instance else type(module).forward
        self._describe(args, kwargs)

    def again(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Candidate:
        """The same callable with another sample call."""
        other = copy.copy(self)
        other.runs = Runs()
        other._describe(args, kwargs)
        return other

    def _describe(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        reached = self.reached
        admit(self._plain if self._module is None else self.module, reached, self.subject)
        self.arguments = Arguments(args, kwargs, function=self.function, subject=self.subject)
        for tensor, path in zip(self.arguments.tensors, self.arguments.paths, strict=True):
            self._refuse_unfit(tensor, path)
        self.device = self._common_device(reached)
        self.compiled = any(compile_contexts(self._plain, reached.modules.values()))
        self.arguments.tensors = self.buffers()

    def put(self, forward: Callable[..., Any]) -> None:
        """Lets the module call ``forward`` in place of its own."""
        module = self.module
        assert module is not None
        vars(module)["forward"] = forward
        # Found on the instance by copy and pickle: copies of the module are without graphs.
        vars(module)["__getstate__"] = functools.partial(
            _state,
            weakref.ref(module),
            graphed=type(forward),
            own=self._plain if self._on_instance else None,
        )

    def put_back(self) -> None:
        """Gives the module its own forward again."""
        module = self.module
        assert module is not None
        vars(module).pop("__getstate__", None)
        if self._on_instance:
            vars(module)["forward"] = self._plain
        else:
            vars(module).pop("forward", None)

    def on(self, module: nn.Module) -> Callable[..., Any]:
        """The forward without graphs, of a copy of the module."""
        return self._plain if self._on_instance else forward_of(module)

    @property
    def module(self) -> nn.Module | None:
        """The module that is graphed; None for another callable.

        Raises:
            GraphStateError: It is gone.
        """
        if self._module is None:
            return None
        module = self._module()
        if module is None:
            raise GraphStateError(
                doing="calling",
                subject=self.subject,
                met="the module that was graphed is gone",
                remedy="Keep the module as long as its forward is used.",
            )
        return module

    @property
    def function(self) -> Callable[..., Any]:
        """The callable without graphs."""
        module = self.module
        if module is None or self._on_instance:
            return self._plain
        return types.MethodType(self._plain, module)

    @property
    def reached(self) -> Reached:
        """The modules that it runs, found anew, and what it reads."""
        return self._reached(())

    def reached_by_runs(self) -> Reached:
        """The same with all that ran in its captures, which is forgotten."""
        found = self._reached(self.runs.calls)
        # They hold what was captured.
        self.runs.clear()
        return found

    def _reached(self, ran: Iterable[Ran]) -> Reached:
        return Reached(self._plain if self._module is None else self.module or self._plain, ran)

    def modes(self) -> list[tuple[dict[str, Any], bool]]:
        """Attributes of the outermost modules that a function runs, and the mode of each."""
        if self.is_module:
            return []
        return [(_with_mode(root), root.training) for root in self.reached.roots.values()]

    def buffers(self, *, bare: bool = False) -> list[torch.Tensor]:
        """Input buffers like the sample's tensors, with their values.

        Args:
            bare: None of them is to require grad.
        """
        with torch.inference_mode(False), torch.no_grad():
            made = []
            for tensor, requires in zip(
                self.arguments.tensors, self.arguments.requires, strict=True
            ):
                buffer = torch.empty_strided(
                    tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device
                )
                buffer.copy_(tensor.detach())
                made.append(buffer.requires_grad_(requires and not bare))
        return made

    def run(self, inputs: Sequence[torch.Tensor]) -> Any:
        """Calls it on ``inputs``, for which the caller's own are to stand later.

        Raises:
            OperationRefused: It writes to one of them.
        """
        versions = [tensor._version for tensor in inputs]
        args, kwargs = self.arguments.call_with(inputs)
        try:
            result = self.function(*args, **kwargs)
        except RuntimeError as error:
            if LEAF_WRITTEN in str(error) and "in-place" in str(error):
                raise self.writes("an input that requires grad") from error
            raise
        for tensor, before, path in zip(inputs, versions, self.arguments.paths, strict=True):
            if tensor._version != before:
                raise self.writes(path)
        if changed := self.arguments.changed(args, kwargs, inputs):
            raise OperationRefused(
                operation="changing an argument",
                doing="graphing",
                subject=self.subject,
                met=f"it sets {', '.join(changed)} of the caller's, and a replay runs no Python",
                remedy="Return what it adds, or let it work on a copy: batch = dict(batch).",
            )
        return result

    def writes(self, path: str) -> OperationRefused:
        """The error for a write to the argument that errors call ``path``."""
        return OperationRefused(
            operation="an in-place operation",
            doing="graphing",
            subject=self.subject,
            met=f"it changes {path} in place, and a replay would change the graph's buffer in "
            "place of the caller's tensor",
            remedy="Let it work on a copy: x = x.clone() (for ReLU and the like inplace=False).",
        )

    def _refuse_unfit(self, tensor: torch.Tensor, path: str) -> None:
        met = plain_tensor(tensor)
        if met is None and (tensor.is_conj() or tensor.is_neg()):
            met = "has its conjugation or sign pending"
        if met is None and any(
            stride == 0 and size > 1
            for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
        ):
            met = f"is expanded (strides {tensor.stride()}), so its elements share memory"
        if met is not None:
            raise ArgumentError(
                doing="graphing",
                subject=self.subject,
                met=f"{path} {met}",
                remedy="Pass a plain dense tensor, as from x.contiguous(), x.to_dense(), "
                "x.dequantize() or x.resolve_conj().resolve_neg().",
            )

    def _common_device(self, reached: Reached) -> torch.device:
        named = [
            *zip(self.arguments.paths, self.arguments.tensors, strict=True),
            *reached.parameters(),
            *reached.buffers(),
        ]
        if not named:
            return resolve_device(None)
        name, first = named[0]
        for other, tensor in named:
            if tensor.device != first.device:
                raise CaptureError(
                    doing="graphing",
                    subject=self.subject,
                    met=f"{name} is on {first.device} and {other} on {tensor.device}",
                    remedy="Move everything to one device: a graph runs on one, and what it reads "
                    "on another would be frozen.",
                )
        return resolve_device(first.device)


def _graphed_module(function: Callable[..., Any]) -> nn.Module | None:
    """The module whose forward is replaced; under DistributedDataParallel that of its module."""
    if not isinstance(function, nn.Module):
        return None
    inner = function.module if is_ddp(function) else function
    assert isinstance(inner, nn.Module)
    return inner


def _state(
    reference: weakref.ref[nn.Module], *, graphed: type, own: Callable[..., Any] | None
) -> Any:
    """What a copy of the module is made of: its attributes, with the forward it had before."""
    module = reference()
    assert module is not None
    state = type(module).__getstate__(module)
    attributes = state[0] if isinstance(state, tuple) else state
    if not isinstance(attributes, dict):
        return state
    attributes = {name: one for name, one in attributes.items() if name != "__getstate__"}
    if isinstance(attributes.get("forward"), graphed):
        del attributes["forward"]
        if own is not None:
            attributes["forward"] = own
    return (attributes, *state[1:]) if isinstance(state, tuple) else attributes


def forward_of(module: nn.Module) -> Callable[..., Any]:
    """The forward of the module's class, bound to it."""
    return types.MethodType(type(module).forward, module)


def _own_forward(module: nn.Module) -> bool:
    own = vars(module).get("forward")
    if isinstance(own, types.MethodType) and own.__self__ is module:
        # As copies of graphed modules have it.
        return own.__func__ is not type(module).forward
    return own is not None


def _called(function: Callable[..., Any]) -> str:
    if isinstance(function, nn.Module):
        return f"module {type(function).__name__}"
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"function {name.rpartition('<locals>.')[2]}"


def _with_mode(module: nn.Module) -> dict[str, Any]:
    """The attributes that hold its mode: of a compiled module those of the one that it wraps."""
    attributes = vars(module)
    wrapped = module._modules.get("_orig_mod")
    return attributes if "training" in attributes or wrapped is None else _with_mode(wrapped)
