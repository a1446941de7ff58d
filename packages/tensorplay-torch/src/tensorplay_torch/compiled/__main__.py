"""Builds the compiled parts for the torch that runs this, and says where they are."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tensorplay_core.compiled import __main__ as core

from . import SOURCES, place


def main(arguments: list[str] | None = None) -> int:
    """Builds them, and core's launch, unless they are there; 0 if they are in the end."""
    parser = argparse.ArgumentParser(
        prog="python -m tensorplay_torch.compiled", description=__doc__
    )
    parser.add_argument("--force", action="store_true", help="build them even if they are there")
    parser.add_argument("--verbose", action="store_true", help="show what the compiler says")
    options = parser.parse_args(arguments)
    status = core.main(["--force"] if options.force else [])
    try:
        path = place()
    except (OSError, RuntimeError) as error:
        print(f"there is no place to build in: {error}", file=sys.stderr)
        return 1
    verbose = partial(build, verbose=options.verbose)
    return core.provide(path, verbose, name="parts", force=options.force) or status


def _missing() -> str | None:
    if shutil.which(os.environ.get("CXX", "c++")) is None and shutil.which("cl") is None:
        return "there is no C++ compiler. Install one (g++ or clang, or Visual Studio's)."
    if shutil.which("ninja") is None and importlib.util.find_spec("ninja") is None:
        return "there is no ninja. Install it: python -m pip install ninja"
    return None


@contextmanager
def _ninja_at_hand() -> Iterator[None]:
    """The ninja that pip installed in the path of commands while entered."""
    before = os.environ.get("PATH", "")
    if shutil.which("ninja") is None:
        found = importlib.import_module("ninja").BIN_DIR
        os.environ["PATH"] = os.pathsep.join((found, before))
    try:
        yield
    finally:
        os.environ["PATH"] = before


def build(path: Path, *, verbose: bool = False) -> None:
    """Compiles the library, and puts it at ``path`` in one step.

    Raises:
        RuntimeError: There is no compiler or no ninja, or the compiler failed.
        OSError: There is no room, or no permission to write.
    """
    if (missing := _missing()) is not None:
        raise RuntimeError(missing)
    from torch.utils import cpp_extension

    with tempfile.TemporaryDirectory(dir=path.parent) as folder, _ninja_at_hand():
        cpp_extension.load(
            "parts",
            [str(SOURCES / "module.cpp")],
            build_directory=folder,
            extra_cflags=[] if sys.platform == "win32" else ["-O2"],
            extra_include_paths=[str(SOURCES)],
            verbose=verbose,
            is_python_module=False,
        )
        (made,) = [one for one in Path(folder).iterdir() if one.suffix in (".so", ".pyd")]
        made.replace(path)


if __name__ == "__main__":
    sys.exit(main())
