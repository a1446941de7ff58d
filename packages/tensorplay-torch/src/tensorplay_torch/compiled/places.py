"""Where the library is kept, by all that it is built from."""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from pathlib import Path

import torch

__all__ = ["CACHE", "ENABLED", "SOURCES", "library"]

ENABLED = "TENSORPLAY_COMPILED"
"""The environment variable that switches the library off where it is ``0``."""

CACHE = "TENSORPLAY_CACHE"
"""The environment variable that names another place for it."""

SOURCES = Path(__file__).parent


def library() -> Path:
    """Where the library for this Python, this torch and these sources is, or would be."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
    made_of = hashlib.sha256()
    for one in (suffix, torch.__version__, torch.version.git_version, sys.platform):
        made_of.update(f"{one}\n".encode())
    for path in sorted([*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")]):
        made_of.update(path.read_bytes())
    return _cache() / made_of.hexdigest()[:16] / f"parts{suffix}"


def _cache() -> Path:
    if named := os.environ.get(CACHE):
        return Path(named)
    if sys.platform == "win32":
        home = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    else:
        home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "tensorplay"
