"""Hyper-parameters that stay live: what a user puts into a group takes effect at the next call.

A captured step holds them by value. Where they stand is found once, by capturing the optimizer's
step alone a few times with other values (``formulas``); from then on a change is a few bytes
written into the nodes concerned, so what runs is what eager would run, bit for bit, and
``group["lr"]`` remains the float that the user put there.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from tensorplay_core.errors import TensorplayError
from tensorplay_torch import CUDAGraph
from tensorplay_torch.numbered import NumberedNode

from .formulas import Key, Place, Values, explain, formulas, packed
from .optimizers import rule_of
from .reads import Reads

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ["Hyperparameters", "put_values", "to_capture", "values_of"]

Trial: TypeAlias = "Callable[[], Sequence[NumberedNode]]"
"""Captures the optimizer's step with what its groups hold now, and throws it away."""

log = logging.getLogger(__name__)
NUMBERS = frozenset(
    {
        "alpha",
        "betas",
        "dampening",
        "eps",
        "etas",
        "lambd",
        "lr",
        "lr_decay",
        "momentum",
        "momentum_decay",
        "rho",
        "step_sizes",
        "t0",
        "weight_decay",
    }
)
"""Hyper-parameters of torch's optimizers: an int among them is a number like any other."""
STAND_IN = 0.0123456789
REPEATS = 4
"""How often captures are repeated to tell numbers from addresses."""


def values_of(optimizer: Optimizer) -> dict[Key, float]:
    """Every hyper-parameter of an optimizer that is a Python number, as a float."""
    found: dict[Key, float] = {}
    for place, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            if _is_number(name, value):
                found[place, name, None] = float(value)
            elif isinstance(value, tuple | list) and name != "params":
                for index, one in enumerate(value):
                    if _is_number(name, one):
                        found[place, name, index] = float(one)
    return found


def to_capture(values: Values) -> dict[Key, float]:
    """What to capture in place of ``values``.

    A learning rate of 0, with which warm-up schedules begin, says nothing about where it goes.
    """
    return {
        key: STAND_IN if key[1] == "lr" and not value else value for key, value in values.items()
    }


@contextmanager
def put_values(optimizer: Optimizer, values: Values) -> Iterator[None]:
    """While entered, the groups of the optimizer hold these numbers."""
    before = [dict(group) for group in optimizer.param_groups]
    try:
        for (place, name, index), value in values.items():
            group = optimizer.param_groups[place]
            if index is None:
                group[name] = value
            else:
                entries = list(group[name])
                entries[index] = value
                group[name] = tuple(entries)
        yield
    finally:
        for group, old in zip(optimizer.param_groups, before, strict=True):
            group.update(old)


class Hyperparameters:
    """The numbers of one captured step.

    Args:
        optimizer: Its groups are what is compared and followed.
        graph: The captured step.
        nodes: Those of the optimizer's step in it.
        captured: The values it was captured with.
        trial: Captures the optimizer's step alone; None if that cannot be done.
        reads: What the captured step read of the groups; None if nobody knows.

    Attributes:
        frozen: Those that the step reads and that cannot be changed in place.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        graph: CUDAGraph,
        nodes: Sequence[NumberedNode],
        captured: Values,
        trial: Trial | None,
        reads: Reads | None = None,
    ) -> None:
        self._optimizer, self._graph, self._nodes = optimizer, graph, nodes
        self._reads = reads
        self._written = dict(captured)
        self._torn: set[Key] = set()
        self._places: dict[Key, list[Place]] = {}
        self.frozen = set(captured)
        understood = self._understood(trial) if trial is not None else None
        if understood is not None:
            places, self.frozen = understood
            for place in places:
                for key in place.formula.keys:
                    self._places.setdefault(key, []).append(place)
        # A number that stands nowhere became part of the graph in some other way.
        self.frozen |= {key for key in captured if key not in self._places or self._elsewhere(key)}
        self.frozen = set(filter(self._read, self.frozen))

    def reads(self, place: int, name: str) -> bool:
        """True if the step may compute with this entry of a group."""
        return self._reads is None or self._reads.read(place, name)

    def _read(self, key: Key) -> bool:
        return self.reads(key[0], key[1])

    def _elsewhere(self, key: Key) -> bool:
        return self._reads is not None and self._reads.elsewhere(key[0], key[1])

    @classmethod
    def fixed(cls, optimizer: Optimizer, graph: CUDAGraph) -> Hyperparameters:
        """Those of somebody else's graph, where nobody knows what they do."""
        return cls(optimizer, graph, [], values_of(optimizer), None)

    def _understood(self, trial: Trial) -> tuple[list[Place], set[Key]] | None:
        """The places, and what is frozen; None if nothing can be learned or changed."""
        if not all(node.readable for node in self._nodes):
            return None
        trials: list[tuple[Values, list[bytes]]] = [
            (self._written, [node.data for node in self._nodes])
        ]
        others = []
        for seed in range(2):
            values = _perturbed(self._written, seed)
            nodes = self._tried(trial, values)
            if nodes is None:
                return None
            trials.append((values, [node.data for node in nodes]))
            others.append([node.constants for node in nodes])
        places, unknown = explain(list(formulas(self._written, self._factors())), trials)
        frozen = (
            self._culprits(trial, unknown, trials) if unknown or others[0] != others[1] else set()
        )
        fixed = self._fixed_nodes(places)
        for place in places:
            if place.node in fixed:
                frozen.update(place.formula.keys)
        return [place for place in places if place.node not in fixed], frozen

    def _culprits(
        self,
        trial: Trial,
        unknown: Iterable[tuple[int, int]],
        trials: list[tuple[Values, list[bytes]]],
    ) -> set[Key]:
        """Which hyper-parameters reach a place that is not understood."""
        doubtful = set(unknown)
        ballast: list[bytearray] = []
        again: Sequence[NumberedNode] | None = None
        for number, (values, data) in enumerate(reversed(trials * REPEATS)):
            if not doubtful and number and not number % len(trials):
                break
            # What differs between two captures of the same values is an address, not a number. The
            # unused part of a kernel's parameters holds what lay on the stack: addresses of the
            # host too, which are to differ likewise.
            ballast.extend(bytearray(size) for size in range(16, 1024, 16))
            again = self._tried(trial, values)
            if again is None:
                return set(self._written)
            doubtful = {place for place in doubtful if _same(place, again, data)}
        assert again is not None
        for node, offset in doubtful:
            words = [data[node][offset : offset + 4].hex() for _, data in trials]
            name = again[node].name
            log.debug("not understood: %s at byte %s of node %s, %s", words, offset, node, name)
        constants, usual = [node.constants for node in again], [node.data for node in again]
        culprits = set()
        for key, value in self._written.items():
            other = {**self._written, key: _other(value, random.Random(7))}
            one = self._tried(trial, other)
            if one is None or [node.constants for node in one] != constants:
                culprits.add(key)
                continue
            changed = [place for place in doubtful if not _same(place, one, usual)]
            if not changed:
                continue
            # A number that it decides is again what it was; an address need not be.
            two, data = self._tried(trial, other), [node.data for node in one]
            if two is None or any(_same(place, two, data) for place in changed):
                culprits.add(key)
        return culprits

    def _tried(self, trial: Trial, values: Values) -> Sequence[NumberedNode] | None:
        """The nodes of the step with other values; None if they are not the same ones."""
        try:
            with put_values(self._optimizer, values):
                found = trial()
        except TensorplayError as error:
            log.debug("a trial capture of the optimizer's step failed: %s", error)
            return None
        forms = [[(node.name, len(node.data)) for node in nodes] for nodes in (found, self._nodes)]
        if forms[0] != forms[1]:
            log.debug("a trial capture of the optimizer's step has nodes %s, not %s", *forms)
            return None
        return found

    def _factors(self) -> Iterator[tuple[Key, float]]:
        rule = rule_of(self._optimizer)
        if rule is None or rule.scales is None:
            return
        for place, group in enumerate(self._optimizer.param_groups):
            shapes = dict.fromkeys(parameter.shape for parameter in group["params"])
            for factor in dict.fromkeys(rule.scales(group, shape) for shape in shapes):
                yield (place, "lr", None), factor

    def _fixed_nodes(self, places: Sequence[Place]) -> set[int]:
        """Nodes with a place in them that cannot be changed in place."""
        fixed = set()
        for number in dict.fromkeys(place.node for place in places):
            try:
                self._nodes[number].rewrite(self._graph, self._nodes[number].data)
            except TensorplayError as error:
                # A launch that packed its arguments, as cuBLAS's do, or a body of a conditional.
                log.debug("the numbers of node %s cannot be changed in place: %s", number, error)
                fixed.add(number)
        return fixed

    @property
    def keys(self) -> Set[Key]:
        """Those that there were at the capture."""
        return self._written.keys()

    def write(self, values: Mapping[Key, float]) -> None:
        """Makes the graph compute with these values from its next launch on.

        Args:
            values: Of keys that are not frozen; keys that there were not at the capture are left.
        """
        changed = {
            key: value
            for key, value in values.items()
            if key in self._written and (key in self._torn or not _equal(value, self._written[key]))
        }
        # Until all of it is written nobody knows what the nodes hold.
        self._torn.update(changed)
        now = {**self._written, **changed}
        datas: dict[int, bytearray] = {}
        for place in {id(p): p for key in changed for p in self._places.get(key, ())}.values():
            data = datas.setdefault(place.node, bytearray(self._nodes[place.node].data))
            value = packed(place.packing, place.formula.of(now))
            data[place.offset : place.offset + len(value)] = value
        for number, data in datas.items():
            self._nodes[number].rewrite(self._graph, bytes(data))
        self._written = now
        self._torn.difference_update(changed)

    def refused(self, values: Mapping[Key, float]) -> Iterator[tuple[Key, float, float]]:
        """Those that cannot become live, each with its value in the graph and now."""
        for key, value in values.items():
            if not self._read(key):
                continue
            was = self._written.get(key, value)
            # A step branches on whether one is zero, or above it: then it takes other operations.
            turned = _sign(value) != _sign(was) and key[1] != "lr"
            if not _equal(value, was) and (key in self.frozen or turned):
                yield key, was, value


def _is_number(name: str, value: object) -> bool:
    # Other ints choose what is done: how many iterations, say.
    return isinstance(value, float) or (type(value) is int and name in NUMBERS)


def _equal(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def _sign(value: float) -> float | None:
    """-1, 0 or 1; None for NaN, which is neither above zero nor zero."""
    return None if math.isnan(value) else (value > 0) - (value < 0)


def _perturbed(values: Values, seed: int) -> dict[Key, float]:
    source = random.Random(seed)
    return {key: _other(value, source) for key, value in values.items()}


def _other(value: float, source: random.Random) -> float:
    """Another value that a step treats alike: zero stays, and so does what infinity means."""
    return value * source.uniform(0.6, 0.99) if value and math.isfinite(value) else value


def _same(place: tuple[int, int], nodes: Sequence[NumberedNode], data: Sequence[bytes]) -> bool:
    """True if that word of that node is as it is in ``data``."""
    node, offset = place
    return nodes[node].data[offset : offset + 4] == data[node][offset : offset + 4]
