"""Import a package in this interpreter and fail if it imports more than it may.

A program for a clean environment, `python -I imports.py tensorplay_core`: it needs nothing but the
standard library.
"""

import importlib
import sys

OURS = {"pluggy", "tensorplay_core", "tensorplay_torch", "tensorplay_adapt", "tensorplay_cupy"}
# What a package may find imported already: importing it may add nothing foreign to that.
BASE = {
    "tensorplay_core": None,
    "tensorplay_torch": "torch",
    "tensorplay_adapt": "torch",
    "tensorplay_cupy": None,
    "_tensorplay_pytestplugin": "pytest",
}
# Inside a base, still too heavy to be paid by an import.
HEAVY = ("torch._dynamo", "torch._inductor", "torch.onnx")


def foreign(package: str) -> list[str]:
    """Names of the modules that importing `package` adds and may not."""
    base = BASE.get(package)
    if base is not None:
        importlib.import_module(base)
    before = set(sys.modules)
    importlib.import_module(package)
    added = set(sys.modules) - before
    root = package.partition(".")[0]
    may = sys.stdlib_module_names | {base, root} | (OURS if root in OURS else set())
    return sorted(
        name for name in added if name.partition(".")[0] not in may or name.startswith(HEAVY)
    )


if __name__ == "__main__":
    if found := foreign(sys.argv[1]):
        sys.exit(f"importing {sys.argv[1]} must not import {', '.join(found)}")
    print(f"{sys.argv[1]}: imports nothing that it may not")
