"""Keeps the tables of the pages in step with the code; `--write` puts them there.

    python docs/tables.py [--write]

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. Exit status 1 if one is not in
step.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import importlib.util
import inspect
import pathlib
import re
import sys
from collections.abc import Callable
from importlib.metadata import entry_points

from tensorplay_core import discovery, errors
from tensorplay_core.runtime import NOUNS

ROOT = pathlib.Path(__file__).parent.parent
MARKED = re.compile(r"(<!-- table: (?P<name>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def drivers() -> str:
    """What each driver implements, by noun."""
    lines = [
        f"| driver | {' | '.join(NOUNS)} |",
        f"|---|{'---|' * len(NOUNS)}",
    ]
    for name in sorted(found.name for found in discovery.find_drivers()):
        has = implemented(name)
        cells = [_share(len(has[noun]), len(hooks)) for noun, hooks in NOUNS.items()]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def implemented(name: str) -> dict[str, tuple[str, ...]]:
    """`Runtime.nouns()` of a driver, read from its four files.

    So it can be said on a machine that lacks the framework or the device.
    """
    point = next(iter(entry_points(group=discovery.DRIVERS, name=name)))
    spec = importlib.util.find_spec(point.module)
    assert spec is not None
    assert spec.submodule_search_locations
    (folder,) = map(pathlib.Path, spec.submodule_search_locations)
    has = {
        one.name.removeprefix("tensorplay_")
        for noun in NOUNS
        for one in ast.walk(ast.parse((folder / f"{noun}.py").read_text(encoding="utf-8")))
        if isinstance(one, ast.FunctionDef)
        and any(ast.unparse(mark).startswith("hookimpl") for mark in one.decorator_list)
    }
    return {noun: tuple(hook for hook in hooks if hook in has) for noun, hooks in NOUNS.items()}


def hooks() -> str:
    """Every hook of the contract, with the first sentence of what it owes."""
    lines = ["| noun | hook | what it does |", "|---|---|---|"]
    for noun, names in NOUNS.items():
        module = sys.modules[f"tensorplay_core.hookspecs.{noun}"]
        for name in names:
            about = inspect.getdoc(getattr(module, f"tensorplay_{name}")) or ""
            lines.append(f"| {noun} | `{name}` | {_sentence(about)} |")
    return "\n".join(lines)


def exceptions() -> str:
    """The tree of errors: each class under its parent, what else it is, and when it comes."""
    lines = ["| error | is also a | meaning |", "|---|---|---|"]
    lines += _branch(errors.TensorplayError, 0)
    return "\n".join(lines)


def _branch(one: type[Exception], depth: int) -> list[str]:
    also = [base.__name__ for base in one.__bases__ if base.__module__ == builtins.__name__]
    name = "&nbsp;" * 4 * depth + f"`{one.__name__}`"
    kinds = ", ".join(f"`{kind}`" for kind in also if kind != "Exception")
    lines = [f"| {name} | {kinds} | {_sentence(inspect.getdoc(one) or '')} |"]
    for child in one.__subclasses__():
        if child.__name__ in errors.__all__:  # Drivers may add their own; they say so themselves.
            lines += _branch(child, depth + 1)
    return lines


def _share(some: int, every: int) -> str:
    return "all" if some == every else f"{some} of {every}" if some else "none"


def _sentence(text: str) -> str:
    first = " ".join(text.partition("\n\n")[0].split())
    return first.replace("``", "`").replace("|", "\\|")


TABLES: dict[str, Callable[[], str]] = {
    "drivers": drivers,
    "hooks": hooks,
    "exceptions": exceptions,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="put the tables into the pages")
    options = parser.parse_args()
    wrong = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        before = page.read_text(encoding="utf-8")
        after = MARKED.sub(lambda at: f"{at[1]}{TABLES[at['name']]()}\n{at[3]}", before)
        if after == before:
            continue
        if options.write:
            page.write_text(after, encoding="utf-8")
        wrong.append(page.relative_to(ROOT))
    for page in wrong:
        print(f"{page}: {'written' if options.write else 'a table is not in step with the code'}")
    if wrong and not options.write:
        print("Run: python docs/tables.py --write")
    return 1 if wrong and not options.write else 0


if __name__ == "__main__":
    sys.exit(main())
