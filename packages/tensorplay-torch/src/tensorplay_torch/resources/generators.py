"""Random numbers in CUDA graphs: which generators a graph advances, and whether it draws at all.

torch advances its generators in its own ``replay``. No torch before 2.14 says whether a graph drew
random numbers, but a generator's offset does: a graph whose first replay moved none of them draws
none, and may be launched without torch from then on.
"""

from __future__ import annotations

import atexit
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tensorplay_core.errors import ArgumentError, ArgumentTypeError
from tensorplay_core.signature import a_type, named

from .devices import index_of

if TYPE_CHECKING:
    from torch._ops import OpOverload

__all__ = [
    "Generators",
    "checked",
    "draws",
    "identity",
    "keep_state",
    "of_torch",
    "put_back",
    "putting_back",
    "serves",
]

# From 2.12 on a capture takes in any generator that its work draws from; before, only those that
# were registered, and torch refuses work that draws from others.
TAKES_IN_ANY = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) >= (2, 12)
_keepers: dict[int, torch.cuda.CUDAGraph] = {}
atexit.register(_keepers.clear)
putting_back: list[Callable[[torch.Generator, torch.Tensor], bool]] = []
"""Whoever watches generators, in captures of other threads: asked to put one back, if it does."""
_SWITCHES = frozenset({"train", "training"})
_RATES = frozenset({"dropout", "dropout_p"})


class Generators:
    """The generators that a graph on a CUDA device may draw from.

    Args:
        device: Where the graph runs.
        registered: Those that the user named, beside the device's default one.

    Attributes:
        complete: No generator can be missing here.
    """

    def __init__(self, device: torch.device, registered: Iterable[torch.Generator] = ()) -> None:
        self._index = index_of(device)
        self._registered = tuple(registered)
        self._seen: dict[int, torch.Generator] = {}
        self.complete = not TAKES_IN_ANY

    def register_with(self, graph: torch.cuda.CUDAGraph) -> None:
        """Lets ``graph``, before it captures, advance the generators that the user named."""
        keep_state(self._index)
        for one in self._registered:
            graph.register_generator_state(one)

    def saw(self, generator: torch.Generator) -> None:
        """Captured work draws from ``generator``."""
        self._seen.setdefault(identity(generator), generator)

    def offsets(self) -> tuple[int, ...]:
        """How far each has advanced. Not inside a capture."""
        default = torch.cuda.default_generators[self._index]
        known = {identity(one): one for one in (default, *self._registered)} | self._seen
        return tuple(one.get_offset() for one in known.values())


def keep_state(index: int) -> None:
    """Keeps what the default generator has on the device for graphs, from the first capture on.

    torch frees it with the last graph that follows the generator, so that the next capture would
    begin with an allocation: 100 µs. A graph that follows it and never captures prevents that.

    Args:
        index: Ordinal of the device.
    """
    if index not in _keepers:
        keeper = torch.cuda.CUDAGraph()
        keeper.register_generator_state(torch.cuda.default_generators[index])
        _keepers[index] = keeper


def identity(generator: torch.Generator) -> int:
    """The same for each of the Python objects by which torch shows one generator."""
    return generator._cdata  # type: ignore[attr-defined, no-any-return]


def checked(generators: Iterable[object], device: torch.device) -> tuple[torch.Generator, ...]:
    """``generators``, once each is one of ``device``.

    Raises:
        ArgumentTypeError: One is no ``torch.Generator``.
        ArgumentError: One is of another device.
    """
    found = []
    for given in generators:
        one = of_torch(given)
        if not serves(one, device):
            raise ArgumentError(
                doing="registering",
                subject=f"a generator of {one.device}",
                met=f"the capture runs on {device}",
                remedy=f"Pass torch.Generator(device={str(device)!r}).",
            )
        found.append(one)
    return tuple(found)


def of_torch(generator: object) -> torch.Generator:
    """``generator``, once it is one of torch's.

    Raises:
        ArgumentTypeError: It is not.
    """
    if isinstance(generator, torch.Generator):
        return generator
    raise ArgumentTypeError(
        doing="registering",
        subject=f"generator {named(generator)}",
        met=f"it is {a_type(generator)}",
        remedy="Pass a torch.Generator of the device that captures.",
    )


def serves(generator: torch.Generator, device: torch.device) -> bool:
    """True if work on ``device`` can draw from ``generator``."""
    # One that was made for "cuda" serves whichever device is current: the capture's.
    its = generator.device
    return its.type == device.type and its.index in (None, device.index)


def draws(operation: OpOverload, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """True if this call draws random numbers.

    torch tags operations that may. One that is told not to, by ``training=False`` or as attention
    or a recurrent layer by a dropout of 0, does not.
    """
    if torch.Tag.nondeterministic_seeded not in operation.tags:
        return False
    for place, parameter in enumerate(operation._schema.arguments):
        value = (
            arguments[place]
            if place < len(arguments)
            else keywords.get(parameter.name, parameter.default_value)
        )
        if parameter.name in _SWITCHES and value is False:
            return False
        if parameter.name in _RATES and value == 0:
            return False
    return True


def put_back(generator: torch.Generator, state: torch.Tensor) -> None:
    """Gives a generator a state back that it had before work which is undone.

    Captures of other threads are told: nobody set it by hand.
    """
    if not any(put(generator, state) for put in putting_back):
        generator.set_state(state)
