"""Which entries of an optimizer's groups a captured step reads, and whether only its update does.

While a step is captured its optimizer holds groups that note who asks them for what. What nobody
asked for may change as it likes. What the update alone asked for may become live. What a loss or a
gradient transform asked for became a number in the graph in some way that no trial of the update
shows, so it stays as it was. Nothing may be written: a replay would not write it again.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tensorplay_core.errors import OperationRefused
from tensorplay_torch.tracking.code import globals_in
from tensorplay_torch.tracking.culprit import where
from tensorplay_torch.tracking.fixed import same

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ["Reads", "held_by", "refused", "settings_of"]

OURS = "tensorplay_"
ABSENT = object()


class Reads:
    """What one captured step read of the groups of its optimizer.

    Args:
        optimizer: Its groups, as they are now.
        functions: What runs beside the module and the optimizer: a loss, a transform.
    """

    def __init__(self, optimizer: Optimizer, *functions: Callable[..., Any] | None) -> None:
        self._optimizer = optimizer
        self._inside: set[tuple[int, Any]] = set()
        self._outside: set[tuple[int, Any]] = set()
        self._stepping = False
        self._everything = True
        # A function that holds a group itself reads it unseen.
        held = {id(one) for function in functions for one in held_by(function)}
        self._unseen = {
            place for place, group in enumerate(optimizer.param_groups) if id(group) in held
        }

    def read(self, place: int, name: Any) -> bool:
        """True if the step, as far as is known, computes with this entry."""
        return self._everything or self.elsewhere(place, name) or (place, name) in self._inside

    def elsewhere(self, place: int, name: Any) -> bool:
        """True if other code than the update does."""
        return place in self._unseen or (place, name) in self._outside

    @contextmanager
    def noting(self) -> Iterator[None]:
        """While entered, the groups of the optimizer note who reads them.

        Raises:
            OperationRefused: An entry is set to something else.
        """
        groups = self._optimizer.param_groups
        before = list(groups)
        groups[:] = [_Group(group, place, self) for place, group in enumerate(before)]
        try:
            yield
        finally:
            groups[:] = before
        # An update that went past these groups keeps others of its own.
        self._everything = any(
            (place, "params") not in self._inside for place in range(len(before))
        )

    @contextmanager
    def update(self) -> Iterator[None]:
        """While entered, the optimizer takes its step."""
        self._stepping = True
        try:
            yield
        finally:
            self._stepping = False

    def note(self, place: int, names: Any) -> None:
        """Somebody asks for entries of a group."""
        frame = sys._getframe(2)
        if not frame.f_globals.get("__name__", "").startswith(OURS):
            found = self._inside if self._stepping else self._outside
            found.update((place, name) for name in names if self._stepping or name != "params")


class _Group(dict[str, Any]):
    """A group that notes who reads it, and refuses to be changed."""

    def __init__(self, group: dict[str, Any], place: int, reads: Reads) -> None:
        super().__init__(group)
        self._place, self._reads = place, reads

    def __getitem__(self, name: str) -> Any:
        self._reads.note(self._place, (name,))
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._reads.note(self._place, (name,))
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self._reads.note(self._place, (name,))
        return super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        self._reads.note(self._place, tuple(super().keys()))
        return super().__iter__()

    def keys(self) -> Any:
        self._reads.note(self._place, tuple(super().keys()))
        return super().keys()

    def values(self) -> Any:
        self._reads.note(self._place, tuple(super().keys()))
        return super().values()

    def items(self) -> Any:
        self._reads.note(self._place, tuple(super().keys()))
        return super().items()

    def copy(self) -> dict[str, Any]:
        self._reads.note(self._place, tuple(super().keys()))
        return dict(super().items())

    def __setitem__(self, name: str, value: Any) -> None:
        old = super().get(name, ABSENT)
        if value is not old and not same(old, value):
            raise refused(self._place, name)

    def setdefault(self, name: str, default: Any = None) -> Any:
        self._reads.note(self._place, (name,))
        if not super().__contains__(name):
            self[name] = default
        return super().get(name, default)

    def update(self, *args: Any, **kwargs: Any) -> None:
        for name, value in dict(*args, **kwargs).items():
            self[name] = value

    def pop(self, name: str, *default: Any) -> Any:
        if super().__contains__(name):
            self[name] = ABSENT
        return default[0] if default else super().__getitem__(name)

    def __delitem__(self, name: str) -> None:
        self.pop(name)


def held_by(function: Callable[..., Any] | None) -> Iterator[object]:
    """What a function finds by name, is bound to, and holds in lists."""
    if isinstance(function, types.MethodType):
        yield function.__self__
        yield from getattr(function.__self__, "__dict__", {}).values()
        function = function.__func__
    if not isinstance(function, types.FunctionType):
        yield from getattr(function, "__dict__", {}).values()
        return
    found = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
    found += [function.__globals__.get(name) for name in globals_in(function)]
    found += function.__defaults__ or ()
    for one in found:
        yield one
        if isinstance(one, list):
            yield from one


def settings_of(optimizer: Optimizer) -> dict[tuple[int, str], Any]:
    """Every entry of the groups but their parameters."""
    return {
        (place, name): value
        for place, group in enumerate(optimizer.param_groups)
        for name, value in group.items()
        if name != "params"
    }


def refused(place: int, name: Any) -> OperationRefused:
    """The error for an entry that is set while a step is taken."""
    return OperationRefused(
        operation=f"setting param_groups[{place}][{name!r}]",
        where=where(),
        met="it is set by code of the step itself, and a replay runs no Python",
        remedy="Change it between calls (scheduler.step() after step(inputs, targets)): what the "
        "groups hold at a call is what the step computes with. A count that an optimizer keeps "
        "there belongs into a tensor of its state.",
    )


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
