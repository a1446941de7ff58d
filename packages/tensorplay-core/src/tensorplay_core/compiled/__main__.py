"""Builds the launch in C for the Python that runs this, and says where it is."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from . import SOURCES, place
from .places import CACHE, load

__all__ = ["build", "main", "provide"]


def provide(
    path: Path,
    build: Callable[[Path], None],
    *,
    name: str,
    force: bool = False,
) -> int:
    """Makes sure that a library is at ``path``, and says so; returns an exit status.

    Args:
        path: Where it is to be.
        build: Builds it there.
        name: Of the library, as a module.
        force: Build it even if it is there.
    """
    try:
        if force or not _loads(name, path):
            path.parent.mkdir(parents=True, exist_ok=True)
            build(path)
            load(name, path)
    except Exception as error:
        print(f"building {name} for {path} failed: {error}", file=sys.stderr)
        if isinstance(error, OSError):
            print(f"Name another place by the variable {CACHE}.", file=sys.stderr)
        with suppress(OSError):
            path.parent.rmdir()
        return 1
    print(path)
    return 0


def _loads(name: str, path: Path) -> bool:
    try:
        load(name, path)
    except (ImportError, OSError):
        return False
    return True


def build(path: Path) -> None:
    """Compiles the library, and puts it at ``path`` in one step.

    Raises:
        ImportError: There is no setuptools.
        RuntimeError: There is no C compiler.
        Exception: What setuptools raises where that fails.
    """
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    # On Windows setuptools finds Visual Studio's by itself; it is on the path of few.
    if sys.platform != "win32" and shutil.which(compiler) is None:
        raise RuntimeError(
            f"there is no C compiler {compiler!r}. Install one (gcc or clang), or name yours by "
            "the variable CC."
        )
    try:
        tools = import_module("setuptools")
    except ImportError as error:
        raise ImportError(f"{error}. Install it: python -m pip install setuptools") from error
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        extension = tools.Extension("launch", ["launch.c"])
        made = tools.Distribution({"name": "launch", "ext_modules": [extension]})
        command = made.get_command_obj("build_ext")
        command.build_lib = command.build_temp = folder
        command.ensure_finalized()
        extension.sources = [str(SOURCES / "launch.c")]
        command.run()
        (library,) = Path(folder).glob(f"launch*{path.suffix}")
        library.replace(path)


def main(arguments: list[str] | None = None) -> int:
    """Builds it unless it is there; 0 if it is in the end."""
    parser = argparse.ArgumentParser(prog="python -m tensorplay_core.compiled", description=__doc__)
    parser.add_argument("--force", action="store_true", help="build it even if it is there")
    options = parser.parse_args(arguments)
    try:
        path = place()
    except (OSError, RuntimeError) as error:
        print(f"there is no place to build in: {error}", file=sys.stderr)
        return 1
    return provide(path, build, name="launch", force=options.force)


if __name__ == "__main__":
    sys.exit(main())
