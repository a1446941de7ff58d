"""``preflight``: runs a function once, as it is, and lists what a capture of it would mind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tensorplay_core.errors import GraphStateError
from tensorplay_torch.graphing.callables import refuse_graphed
from tensorplay_torch.graphing.graphed import GraphedFunction
from tensorplay_torch.graphing.nesting import inside
from tensorplay_torch.resources.devices import resolve_device
from tensorplay_torch.structure import structure_of
from tensorplay_torch.tracking.attributes import Attributes
from tensorplay_torch.tracking.dispatch import CaptureDispatch
from tensorplay_torch.tracking.preservation import Preservation
from tensorplay_torch.tracking.reached import Reached
from tensorplay_torch.tracking.refusals import Reason
from tensorplay_torch.tracking.state import Bindings

from .findings import Finding, Findings, host_draw, named
from .host_draws import HostDraws

__all__ = ["Report", "preflight"]

REPEATS = (
    "Each replay writes the same memory again, as each call does. make_graphed_callables and "
    "graphed refuse writes to their own inputs: let those work on x.clone()."
)


@dataclass(frozen=True, slots=True)
class Report:
    """What ``preflight`` found. ``print(report)`` is meant for reading.

    Attributes:
        subject: What was run.
        device: What a capture of it would run on.
        findings: Everything found, problems first.
    """

    subject: str
    device: torch.device
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """True if no problem was found."""
        return not self.problems

    @property
    def problems(self) -> tuple[Finding, ...]:
        """What a capture would refuse or a replay not repeat."""
        return tuple(one for one in self.findings if one.problem)

    @property
    def notes(self) -> tuple[Finding, ...]:
        """What is only to be known."""
        return tuple(one for one in self.findings if not one.problem)

    def __str__(self) -> str:
        counts = (
            _counted(len(self.problems), "problem") + ", " + _counted(len(self.notes), "note")
            if self.findings
            else "nothing found"
        )
        lines = [f"preflight of {self.subject} on {self.device}: {counts}"]
        for one in self.findings:
            first, *rest = f"{'problem' if one.problem else 'note'}: {one}".splitlines()
            lines += [f"  {first}", *(f"    {line}" for line in rest)]
        return "\n".join(lines)


def preflight(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Report:
    """Runs ``function(*args, **kwargs)`` once, uncaptured, and lists what graphs cannot have.

    It is looked at by the gates of real captures on the device of the arguments, the CPU included:
    values that the host reads, shapes that depend on values, random numbers drawn on the host,
    memory that moves, optimizer state that the run created ("warm up first"), and, as notes, writes
    to tensors from outside and attributes that it sets. Each with its operation, line and remedy.

    Afterwards parameters, buffers, gradients, optimizer state, attributes and random generators are
    as they were. What other Python code changes (files, lists of one's own) is not undone. Branches
    not taken by this call, and other threads, are not seen; kernels launched past torch are not
    looked into. A capture is the last word.

    Args:
        function: A function of tensors, a training step, or a module.
        args: Of the call.
        kwargs: The same.

    Raises:
        GraphStateError: It is graphed already, or a capture is under way here.
    """
    if isinstance(function, GraphedFunction):
        function = function.original
    refuse_graphed(function)
    reached = Reached(function)
    device = _device(reached, args, kwargs)
    subject = f"function {getattr(function, '__qualname__', type(function).__qualname__)}"
    if isinstance(function, torch.nn.Module):
        subject = f"module {type(function).__name__}"
    if inside(device):
        raise GraphStateError(
            doing="running a preflight of",
            subject=subject,
            met="a capture is under way in this thread",
            remedy="Run it outside: it is to come before the capture.",
        )
    return Report(subject, device, _run(function, args, kwargs, reached, device))


def _run(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    reached: Reached,
    device: torch.device,
) -> tuple[Finding, ...]:
    # It prepares for torch.compile, which takes a second to import.
    from .scouting import FunctionScout, OperationScout

    findings = Findings()
    names = named([*_arguments(args, kwargs), *reached.parameters(), *reached.buffers()])
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    attributes = Attributes(reached.modules)
    preservation = Preservation(device, [buffer for _, buffer in reached.buffers()])
    bindings = Bindings(preservation.is_born)
    scout = OperationScout(findings, device, is_born=preservation.is_born, leaf=bindings.leaf)
    dispatch = CaptureDispatch([scout, preservation])
    functions = FunctionScout(findings, device, bindings.leaf)
    torch.clear_autocast_cache()
    bindings.start()
    try:
        functions.start()
        dispatch.start()
        try:
            with HostDraws(
                lambda what, called, place: findings.add(_host(what, called, place, device))
            ):
                function(*args, **kwargs)
        finally:
            dispatch.stop()
            functions.stop()
        for error in bindings.refusals():
            findings.refusal(error, kind="optimizer state")
        _note_writes(findings, scout.written, names)
        _note_attributes(findings, attributes)
    finally:
        bindings.stop()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        preservation.restore()
        bindings.restore()
        bindings.forget()
        attributes.restore()
        torch.clear_autocast_cache()
    return findings.all()


def _host(what: str, called: str, place: str, device: torch.device) -> Finding:
    if what == "draw":
        return host_draw(called, place, device)
    if what == "seed":
        return Finding("randomness by hand", called, place, *Reason.RNG_BY_HAND.value)
    return Finding(
        "wait",
        called,
        place,
        "it waits for the device, and during a capture nothing runs that could be waited for",
        "Wait after the replay.",
    )


def _note_writes(
    findings: Findings,
    written_to: Mapping[int, tuple[torch.Tensor, str, str]],
    names: Mapping[int, str],
) -> None:
    lines: dict[str, list[tuple[str, str]]] = {}
    for key, (tensor, operation, place) in written_to.items():
        what = names.get(key, f"a tensor of shape {tuple(tensor.shape)} that it reaches")
        lines.setdefault(place, []).append((operation, what))
    for place, written in lines.items():
        operation = written[0][0]
        changed = ", ".join(dict.fromkeys(what for _, what in written))
        met = f"it changes {changed} in place"
        findings.add(Finding("write", operation, place, met, REPEATS, problem=False))


def _note_attributes(findings: Findings, attributes: Attributes) -> None:
    bound = sorted(one for one in attributes.changes() if not one.endswith(".grad"))
    if bound:
        met = f"it sets {', '.join(bound)}, and a replay runs no Python"
        remedy = (
            "Return the value as an output, or write a tensor in place (buffer.copy_(x)). What "
            "only the first call sets is fine: warm up before the capture."
        )
        findings.add(Finding("attribute", "setting an attribute", "", met, remedy, problem=False))


def _arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for root, value in (("args", args), ("kwargs", dict(kwargs))):
        leaves: list[Any] = []
        paths = structure_of(value, leaves).paths(root)
        for path, leaf in zip(paths, leaves, strict=True):
            if isinstance(leaf, torch.Tensor):
                yield path, leaf


def _device(reached: Reached, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device:
    tensors = (*_arguments(args, kwargs), *reached.parameters(), *reached.buffers())
    devices: list[torch.device] = [tensor.device for _, tensor in tensors]
    return devices[0] if devices else resolve_device(None)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
