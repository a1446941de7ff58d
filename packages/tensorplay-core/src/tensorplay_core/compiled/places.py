"""Where libraries that users build are kept, by all that they are built from; and loading them."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

__all__ = ["CACHE", "ENABLED", "library", "load", "look_for", "why_not"]

ENABLED = "TENSORPLAY_COMPILED"
"""The environment variable that switches libraries off where it is ``0``."""

CACHE = "TENSORPLAY_CACHE"
"""The environment variable that names another place for them."""

log = logging.getLogger(__name__)


def library(name: str, sources: Iterable[Path], *made_of: str) -> Path:
    """Where a library for this Python and these sources is, or would be.

    Args:
        name: Of the library.
        sources: Its files.
        made_of: What else it depends on.

    Raises:
        OSError: The sources cannot be read.
        RuntimeError: The user has no home.
    """
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    key = hashlib.sha256()
    for one in (name, suffix, sys.platform, *made_of):
        key.update(f"{one}\n".encode())
    for path in sorted(sources):
        key.update(path.read_bytes())
    return _cache() / key.hexdigest()[:16] / f"{name}{suffix}"


def _cache() -> Path:
    if named := os.environ.get(CACHE):
        return Path(named).expanduser().absolute()
    if sys.platform == "win32":
        home = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    else:
        home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "tensorplay"


def load(qualified: str, path: Path) -> Any:
    """The library at ``path``, as the module ``qualified``.

    Raises:
        ImportError: It does not fit this process.
    """
    loader = importlib.machinery.ExtensionFileLoader(qualified, str(path))
    spec = importlib.util.spec_from_file_location(qualified, path, loader=loader)
    assert spec is not None, "a loader was given"
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def look_for(qualified: str, find: Callable[[], Path], build: str) -> Any:
    """The library, or None: not built, switched off, or not to be had.

    Args:
        qualified: What it is called as a module.
        find: Returns where it would be.
        build: The command that builds it.
    """
    if os.environ.get(ENABLED) == "0":
        return None
    try:
        path = find()
        return load(qualified, path) if path.exists() else None
    except ImportError as error:
        log.warning("%s cannot be loaded (%s); build it anew: %s --force", path, error, build)
    except (OSError, RuntimeError) as error:
        # A user without a home, or with one that is not to be read.
        log.debug("%s cannot be looked for: %s", qualified, error)
    return None


def why_not(find: Callable[[], Path], build: str) -> str:
    """Why a library is not in use, as one line.

    Args:
        find: Returns where it would be.
        build: The command that builds it.
    """
    if os.environ.get(ENABLED) == "0":
        return f"switched off by {ENABLED}=0"
    try:
        if find().exists():
            return f"it cannot be loaded, build it anew: {build} --force"
    except (OSError, RuntimeError):
        pass
    return f"not built, calls cost more without: {build}"
