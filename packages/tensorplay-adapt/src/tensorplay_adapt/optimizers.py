"""What each optimizer of torch needs to be captured, and what its first step finds in its state.

One rule an optimizer. An optimizer that has none is somebody else's: it is captured if its state
exists already, and what the capture cannot stand is refused by the operation's name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import torch

from tensorplay_core.errors import CaptureError, TensorplayError

__all__ = [
    "RULES",
    "Rule",
    "admit",
    "create_state",
    "damped_keys",
    "is_untouched",
    "rule_of",
    "takes_fused_steps",
]

Group: TypeAlias = "dict[str, Any]"
Initial: TypeAlias = "float | Callable[[Group], Any]"
"""The value that every element has before the first step."""


def _rate(group: Group) -> Any:
    return group["lr"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How one optimizer is captured.

    Attributes:
        never: Why it cannot be, anywhere, and what to use; two sentences, or none.
        on_cuda: Option that every group needs on CUDA; ``""`` if it needs none.
        on_cpu: The same on the CPU; None if it cannot be captured there.
        newer: Some torch takes no fused step of it on CUDA.
        initial: What its first step finds in its state, where that is not zeros.
        scales: By what its step multiplies the learning rate for a parameter of this shape.
    """

    never: tuple[str, str] | None = None
    on_cuda: str = ""
    on_cpu: str | None = ""
    newer: bool = False
    initial: Mapping[str, Initial] = field(default_factory=dict)
    scales: Callable[[Group, torch.Size], float] | None = None


def _muon_scale(group: Group, shape: torch.Size) -> float:
    rows, columns = shape[:2]
    way = group["adjust_lr_fn"]
    if way is None or way == "original":
        return math.sqrt(max(1, rows / columns))
    return 0.2 * math.sqrt(max(rows, columns)) if way == "match_rms_adamw" else 1.0


ADAM = Rule(on_cuda="capturable", on_cpu="fused")
COUNTS_ON_HOST = Rule(on_cuda="capturable", on_cpu=None)
RULES: Mapping[str, Rule] = {
    "Adadelta": Rule(on_cuda="capturable"),
    "Adagrad": Rule(
        on_cuda="fused",
        on_cpu="fused",
        newer=True,
        initial={"sum": lambda group: group["initial_accumulator_value"]},
    ),
    "Adam": ADAM,
    "AdamW": ADAM,
    "Adamax": COUNTS_ON_HOST,
    "ASGD": Rule(on_cuda="capturable", on_cpu=None, initial={"eta": _rate, "mu": 1.0}),
    "NAdam": Rule(on_cuda="capturable", on_cpu=None, initial={"mu_product": 1.0}),
    "RAdam": COUNTS_ON_HOST,
    "RMSprop": Rule(on_cuda="capturable"),
    "Rprop": Rule(on_cuda="capturable", initial={"step_size": _rate}),
    "SGD": Rule(),
    "Muon": Rule(scales=_muon_scale),
    "LBFGS": Rule(
        never=(
            "it calls a closure as often as its line search wants, and decides on the host",
            "Use a first-order optimizer, such as AdamW(..., fused=True, capturable=True).",
        )
    ),
    "SparseAdam": Rule(
        never=(
            "it updates the rows that a sparse gradient names, whose number changes",
            "Use dense gradients (Embedding(sparse=False)) and Adam(..., fused=True, "
            "capturable=True).",
        )
    ),
    "Adafactor": Rule(
        never=(
            "its step counts, and takes roots of the count, on the host",
            "Use AdamW(..., fused=True, capturable=True), or Muon for matrices.",
        )
    ),
}
"""By the names of ``torch.optim``."""

CPU_CHOICE = (
    "On the CPU these capture: SGD, Adadelta, RMSprop, Rprop, and with fused=True Adam, AdamW and "
    "Adagrad."
)


def rule_of(optimizer: torch.optim.Optimizer) -> Rule | None:
    """The rule of torch's own class that ``optimizer`` is or descends from."""
    for kind in type(optimizer).__mro__:
        if kind.__module__.startswith("torch.optim") and kind.__name__ in RULES:
            return RULES[kind.__name__]
    return None


def admit(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Refuses an optimizer whose captured step could not be its eager one.

    Raises:
        CaptureError: It is named, with the group and what to change.
    """
    rule, name = rule_of(optimizer), type(optimizer).__name__
    if rule is not None and rule.never is not None:
        raise _refused(name, *rule.never)
    if rule is not None and device.type == "cpu" and rule.on_cpu is None:
        raise _refused(
            name, "its step counts on the host, and needs CUDA to count there", CPU_CHOICE
        )
    for place, group in enumerate(optimizer.param_groups):
        where = f"param_groups[{place}]"
        for met, remedy in _unfit(rule, name, group, where, device):
            raise _refused(name, met, remedy)
        for number, parameter in enumerate(group["params"]):
            if error := _misplaced(optimizer, parameter, device, f"{where}['params'][{number}]"):
                raise error


def _unfit(
    rule: Rule | None, name: str, group: Group, where: str, device: torch.device
) -> Iterator[tuple[str, str]]:
    if group.get("differentiable"):
        yield (
            f"{where} has differentiable=True, so that its step would need a history",
            "Make it with differentiable=False.",
        )
    if device.type == "cuda":
        needed = rule.on_cuda if rule is not None else ""
        if rule is not None and rule.newer and not takes_fused_steps(name, device):
            yield (
                f"torch {torch.__version__} has no fused step of it on CUDA, and its other steps "
                "count on the host",
                "Use a torch that has (2.13, say), or RMSprop(..., capturable=True).",
            )
        if not needed and "capturable" in group:
            needed = "capturable"
        if needed and not group.get(needed):
            yield (
                f"{where} has {needed}={group.get(needed)}, so its step counts on the host",
                f"Make it with {needed}=True: torch.optim.{name}(..., {needed}=True).",
            )
        on_device = group.get("fused") or "capturable" in group
        if isinstance(group.get("lr"), torch.Tensor) and not on_device:
            yield (
                f"{where}['lr'] is a tensor, which this step reads on the host",
                "Pass a float, which stays live here (group['lr'] = x takes effect at the next "
                f"call), or make it {name}(..., fused=True).",
            )
        return
    needed = rule.on_cpu or "" if rule is not None else ""
    if needed and not group.get(needed):
        yield (
            f"{where} has {needed}={group.get(needed)}, so its step counts on the host",
            f"Make it with {needed}=True: torch.optim.{name}(..., {needed}=True). {CPU_CHOICE}",
        )
    if group.get("capturable") and needed != "fused":
        yield (
            f"{where} has capturable=True, which torch refuses on the CPU",
            "Leave capturable out: on the CPU this optimizer captures without.",
        )
    if isinstance(group.get("lr"), torch.Tensor) and not group.get("fused"):
        yield (
            f"{where}['lr'] is a tensor, which this step reads on the host",
            "Pass a float: it stays live (group['lr'] = x takes effect at the next call).",
        )


@cache
def takes_fused_steps(name: str, device: torch.device) -> bool:
    """Whether this torch takes fused steps of ``torch.optim.<name>`` there: it is tried."""
    with torch.inference_mode(False):
        one = torch.zeros(1, device=device, requires_grad=True)
        one.grad = torch.zeros_like(one)
        try:
            getattr(torch.optim, name)([one], fused=True).step()
        except RuntimeError:
            return False
    return True


def _misplaced(
    optimizer: torch.optim.Optimizer, parameter: torch.Tensor, device: torch.device, where: str
) -> TensorplayError | None:
    name = type(optimizer).__name__
    if parameter.device != device:
        return _refused(
            name,
            f"{where} is on {parameter.device}, and the step runs on {device}",
            "Keep the module and its optimizer's parameters on one device.",
        )
    for key, value in optimizer.state.get(parameter, {}).items():
        if isinstance(value, torch.Tensor) and value.device != device:
            return _refused(
                name,
                f"state {key!r} of {where} is on {value.device}, left by steps taken before "
                "capturable=True",
                f"Move it: s = optimizer.state[p]; s[{key!r}] = s[{key!r}].to({str(device)!r}).",
            )
    return None


def create_state(
    optimizer: torch.optim.Optimizer, born: Iterable[tuple[torch.Tensor, str]]
) -> list[str]:
    """Gives state that a warm-up step made the values that a first step finds.

    Args:
        optimizer: The state is there.
        born: Parameter and key of each entry.

    Returns:
        Names of entries of which nobody knows what they are before the first step.
    """
    rule = rule_of(optimizer)
    groups = {one: group for group in optimizer.param_groups for one in group["params"]}
    unknown = set()
    for parameter, key in born:
        value = optimizer.state[parameter][key]
        if rule is None or not isinstance(value, torch.Tensor):
            unknown.add(key)
            continue
        with torch.no_grad():
            value.fill_(_initial(rule, key, groups[parameter]))
    return sorted(unknown)


def is_untouched(
    optimizer: torch.optim.Optimizer,
    born: Iterable[tuple[torch.Tensor, str]],
    groups: Iterable[Group],
) -> bool:
    """True if such state still has the values that a first step finds. Waits for the device.

    Args:
        optimizer: The state is there.
        born: Parameter and key of each entry.
        groups: The optimizer's, as they were then.
    """
    rule = rule_of(optimizer)
    by_parameter = {one: group for group in groups for one in group["params"]}
    return rule is not None and all(
        bool((value == _initial(rule, key, by_parameter[parameter])).all())
        for parameter, key in born
        if isinstance(value := optimizer.state.get(parameter, {}).get(key), torch.Tensor)
    )


def _initial(rule: Rule, key: str, group: Group) -> Any:
    initial = rule.initial.get(key, 0.0)
    return initial(group) if callable(initial) else initial


def begins_by_rate(optimizer: torch.optim.Optimizer) -> bool:
    """True if some of its state begins as the learning rate of the first step."""
    rule = rule_of(optimizer)
    return rule is not None and _rate in rule.initial.values()


def damped_keys(optimizer: torch.optim.Optimizer) -> list[tuple[int, str, int | None]]:
    """The dampening of each SGD group whose first step would not be damped.

    The first step takes the gradient whole as momentum. From a momentum of zeros, which a graph has
    in place of none, it does so only without dampening.
    """
    return [
        (place, "dampening", None)
        for place, group in enumerate(optimizer.param_groups)
        if rule_of(optimizer) is RULES["SGD"] and group["momentum"] and group["dampening"]
    ]


def _refused(name: str, met: str, remedy: str) -> CaptureError:
    return CaptureError(doing="capturing a step of", subject=name, met=met, remedy=remedy)
