"""The CuPy driver's card: cheap to import, CuPy itself only when it is asked about."""

from __future__ import annotations

import re
from importlib.metadata import distributions

from tensorplay_core import discovery
from tensorplay_core.errors import DriverError

__all__ = ["FLOOR", "load", "name", "priority", "viability", "wheels"]

name = "cupy"
priority = 15
FLOOR = (14, 0)
"""Oldest CuPy that has what the driver needs: streams of others, and callbacks it retains."""

_WHEEL = re.compile(r"cupy(-cuda\d+x?|-rocm-\d+-\d+)?")


def wheels() -> list[str]:
    """The installed distributions that bring a package ``cupy``, with their versions."""
    found = {
        (one.metadata["Name"] or "").lower().replace("_", "-"): one.version
        for one in distributions()
    }
    return [f"{wheel} {found[wheel]}" for wheel in sorted(found) if _WHEEL.fullmatch(wheel)]


def viability() -> str | None:
    """None if CuPy can be driven here, else the reason, with what would help."""
    found = wheels()
    if len(found) > 1:
        return (
            f"several CuPy wheels are installed and overwrite each other ({', '.join(found)}): "
            "pip uninstall them all, then install the one for your CUDA line, cupy-cuda13x or "
            "cupy-cuda12x"
        )
    try:
        import cupy
    except ImportError as error:
        first = str(error).strip().partition("\n")[0] or type(error).__name__
        return (
            f"cupy cannot be imported ({first}): pip install 'tensorplay-cupy[cuda13]' "
            "(or [cuda12])"
        )
    match = re.match(r"(\d+)\.(\d+)", cupy.__version__)
    if match is None or tuple(map(int, match.groups())) < FLOOR:
        return (
            f"CuPy {cupy.__version__} is too old: {FLOOR[0]}.{FLOOR[1]} or newer is needed "
            f"({found[0] if found else 'installed from source'})"
        )
    if cupy.cuda.runtime.is_hip:
        return f"CuPy {cupy.__version__} is a ROCm build, and its graphs lack what is needed here"
    try:
        reason = discovery.load_card("cuda").viability()
    except DriverError as error:
        reason = error.met
    if reason is not None:
        return f"it stands on driver 'cuda', which cannot work here: {reason.rstrip('.')}"
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"CuPy {cupy.__version__} cannot use the GPU: {error}"
    return None


def load() -> object:
    """The plugin: every hook of the four nouns. It touches no GPU until one is used."""
    from .conditional import Conditionals

    return Conditionals()
