"""Finds drivers and observers by their entry points, and chooses a driver.

Choice: the argument, then ``TENSORPLAY_DRIVER``, then the viable driver of highest priority. A
driver asked for by name is the only one imported, and never falls back to another.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, cast

from .errors import DriverUnavailable, UnknownDriver

__all__ = [
    "DriverCard",
    "Found",
    "choose",
    "find_drivers",
    "find_observer",
    "find_workbench",
    "load_card",
    "observers_asked_for",
]

DRIVERS = "tensorplay_core.drivers"
OBSERVERS = "tensorplay_core.observers"
WORKBENCHES = "tensorplay_core.workbenches"
log = logging.getLogger(__name__)


class DriverCard(Protocol):
    """What an entry point of ``tensorplay_core.drivers`` refers to: a module or an object.

    It is cheap to import: whatever the driver stands on is imported by ``viability`` or ``load``.

    Attributes:
        name: The driver's name, equal to the entry point's.
        priority: The highest viable one is the automatic choice. The host driver's is 0.
    """

    name: str
    priority: int

    def viability(self) -> str | None:
        """None if the driver works on this machine, else the reason, with what would help."""
        ...

    def load(self) -> object:
        """The plugin: the object whose methods implement the hooks."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One installed driver, and whether it works here."""

    name: str
    priority: int
    reason: str | None
    """None if viable."""
    card: DriverCard | None


def _points(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=group)}


def load_card(name: str) -> DriverCard:
    """The card of the driver ``name``, which alone is imported.

    Raises:
        UnknownDriver: No driver of that name is installed.
        DriverUnavailable: It is installed and its card cannot be imported.
    """
    points = _points(DRIVERS)
    if name not in points:
        near = difflib.get_close_matches(name, points, n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise UnknownDriver(
            doing="choosing",
            subject=f"driver {name!r}",
            met=f"the drivers installed are {', '.join(sorted(points)) or 'none'}",
            remedy=f"{hint}Install the package that brings {name!r}, or name one of those.",
        )
    try:
        return cast("DriverCard", points[name].load())
    except ImportError as error:
        raise DriverUnavailable(
            doing="importing",
            subject=f"driver {name!r}",
            met=f"{type(error).__name__}: {error}",
            remedy=f"Install what it needs, or choose another driver than {name!r}.",
        ) from error


def find_drivers() -> list[Found]:
    """Every installed driver, highest priority first, with the reason of those not viable."""
    found = []
    for name in _points(DRIVERS):
        try:
            card = load_card(name)
        except DriverUnavailable as error:
            found.append(Found(name=name, priority=-1, reason=error.met, card=None))
            continue
        found.append(Found(name=name, priority=card.priority, reason=card.viability(), card=card))
    return sorted(found, key=lambda one: (-one.priority, one.name))


def choose(name: str | None = None) -> DriverCard:
    """The card of the driver to use.

    Raises:
        UnknownDriver: ``name`` (or ``TENSORPLAY_DRIVER``) names none that is installed.
        DriverUnavailable: It names one that cannot work here.
    """
    asked = name or os.environ.get("TENSORPLAY_DRIVER")
    if asked:
        card = load_card(asked)
        reason = card.viability()
        if reason is not None:
            raise DriverUnavailable(
                doing="choosing",
                subject=f"driver {asked!r}",
                met=reason,
                remedy="Mend that, or choose another: python -m tensorplay_core lists them.",
            )
        return card
    for one in find_drivers():
        if one.reason is None and one.card is not None:
            log.info("driver %r chosen (priority %d)", one.name, one.priority)
            return one.card
        log.info("driver %r passed over: %s", one.name, one.reason)
    raise DriverUnavailable(
        doing="choosing",
        subject="a driver",
        met="none of those installed is viable",
        remedy="Reinstall tensorplay-core: its host driver works everywhere.",
    )


def find_observer(name: str) -> Callable[[], object]:
    """The factory registered as observer ``name``.

    Raises:
        UnknownDriver: No observer of that name is installed.
    """
    points = _points(OBSERVERS)
    if name not in points:
        raise UnknownDriver(
            doing="finding",
            subject=f"observer {name!r}",
            met=f"the observers installed are {', '.join(sorted(points)) or 'none'}",
            remedy="Name one of those, or pass an observer object.",
        )
    return cast("Callable[[], object]", points[name].load())


def find_workbench(name: str) -> Callable[..., Any]:
    """The workbench factory of driver ``name``: ``factory(runtime, device)``.

    Raises:
        UnknownDriver: The driver ships none.
    """
    points = _points(WORKBENCHES)
    if name not in points:
        raise UnknownDriver(
            doing="finding",
            subject=f"the workbench of driver {name!r}",
            met=f"the drivers that ship one are {', '.join(sorted(points)) or 'none'}",
            remedy=f"Add an entry point {name!r} to the group {WORKBENCHES!r}.",
        )
    return cast("Callable[..., Any]", points[name].load())


def observers_asked_for() -> list[Callable[[], object]]:
    """The factories of the observers that ``TENSORPLAY_OBSERVERS`` names, comma-separated."""
    names = os.environ.get("TENSORPLAY_OBSERVERS", "")
    return [find_observer(name.strip()) for name in names.split(",") if name.strip()]
