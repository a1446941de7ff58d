"""Parameters replaced by stand-ins of the same memory while a callable is captured.

A stand-in is a leaf of its own. So what hangs on the parameter itself stays out of the graph: hooks
run at every backward and not at the capture, DistributedDataParallel's reducer hears nothing of it,
and autograd's node for the parameter, which remembers the stream of its first use, is not touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

__all__ = ["StandIns", "substituted"]


class StandIns:
    """Which tensor stands in for which parameter."""

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        self._by_parameter: dict[int, nn.Parameter] = {}
        self._real: dict[int, tuple[nn.Parameter, str]] = {}
        for name, parameter in parameters:
            if parameter.requires_grad and id(parameter) not in self._by_parameter:
                stand_in = nn.Parameter(parameter.detach())
                stand_in.__dict__.update(parameter.__dict__)
                self._by_parameter[id(parameter)] = stand_in
                self._real[id(stand_in)] = (parameter, name)

    def stands(self, value: Any) -> bool:
        """True if a stand-in replaces ``value``."""
        return id(value) in self._by_parameter

    def instead_of(self, value: Any) -> Any:
        """The stand-in of a parameter; anything else is returned as it is."""
        return self._by_parameter.get(id(value), value)

    def real(self, tensor: torch.Tensor) -> nn.Parameter | None:
        """The parameter that ``tensor`` stands in for; None if it does for none."""
        found = self._real.get(id(tensor))
        return None if found is None else found[0]

    def all(self) -> Iterator[tuple[str, nn.Parameter, nn.Parameter]]:
        """Name, parameter and stand-in of each."""
        for parameter, name in self._real.values():
            yield name, parameter, self._by_parameter[id(parameter)]


@contextmanager
def substituted(
    modules: Mapping[str, nn.Module], parameters: Iterable[tuple[str, nn.Parameter]]
) -> Iterator[StandIns]:
    """Puts stand-ins in the place of parameters that require grad, wherever modules hold them.

    Another thread that runs the modules meanwhile meets the stand-ins too: graph before sharing.
    """
    stand_ins = StandIns(parameters)
    undo: list[tuple[Any, Any, Any]] = []

    def put(container: Any, key: Any, value: Any) -> None:
        undo.append((container, key, container[key]))
        container[key] = value

    try:
        for module in modules.values():
            attributes = vars(module)
            for name, value in list(attributes.items()):
                # Recurrent layers keep a list of their weights beside the parameters themselves.
                if isinstance(value, list | dict):
                    pairs = value.items() if isinstance(value, dict) else enumerate(value)
                    for key, one in list(pairs):
                        if stand_ins.stands(one):
                            put(value, key, stand_ins.instead_of(one))
                elif type(value) is tuple and any(map(stand_ins.stands, value)):
                    put(attributes, name, tuple(map(stand_ins.instead_of, value)))
                elif stand_ins.stands(value):
                    put(attributes, name, stand_ins.instead_of(value))
        yield stand_ins
    finally:
        for container, key, value in reversed(undo):
            container[key] = value
