"""What drivers without a framework refuse alike."""

from __future__ import annotations

from tensorplay_core.errors import UnsupportedByDriver
from tensorplay_core.protocols import CaptureOptions

__all__ = ["refuse_generators"]


def refuse_generators(driver: str, options: CaptureOptions) -> None:
    """For drivers that know no random generators: a graph that should advance one is refused.

    Raises:
        UnsupportedByDriver: ``options`` name generators.
    """
    if options.generators:
        raise UnsupportedByDriver(
            driver=driver,
            hook="random generators",
            doing="registering generators with",
            remedy="Advance them outside the graph, and copy what they gave into a buffer.",
        )
