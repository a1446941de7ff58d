"""Runs the Python of pages and compares what it prints with the page; `--write` puts it there.

    python docs/examples.py [--write] [PAGE ...]

Of a page, the ```python blocks run in order in one namespace. A ```text block right behind one is
its output. Exit status 1 if a page is out of step. Pages are written for a machine without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import os
import pathlib
import re
import sys
import traceback

ROOT = pathlib.Path(__file__).parent.parent
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<output>.*?)```\n)?", re.DOTALL)


def pages() -> list[pathlib.Path]:
    """The README and every page of docs that has Python in it."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if BLOCK.search(page.read_text(encoding="utf-8"))]


def run(page: pathlib.Path) -> str:
    """The page's text with the output that its blocks really give."""
    text = page.read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": "__main__"}

    def with_output(block: re.Match[str]) -> str:
        line = text[: block.start("code")].count("\n")
        printed = _output("\n" * line + block["code"], page, names)
        if block["output"] is None:
            if printed:
                raise AssertionError(
                    f"{page}:{line}: prints, and no text block follows:\n{printed}"
                )
            return block[0]
        return f"```python\n{block['code']}```\n\n```text\n{printed}```\n"

    return BLOCK.sub(with_output, text)


def _output(code: str, page: pathlib.Path, names: dict[str, object]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, str(page), "exec"), names)  # The page is part of this repository.
    return re.sub(r"[ \t]+$", "", out.getvalue(), flags=re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=pathlib.Path, help="default: all with Python")
    parser.add_argument("--write", action="store_true", help="put the real output into the pages")
    options = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    wrong = 0
    for page in options.pages or pages():
        before = page.read_text(encoding="utf-8")
        try:
            after = run(page)
        except Exception:
            print(f"{page}: its Python failed")
            traceback.print_exc(file=sys.stdout)
            wrong += 1
            continue
        if after == before:
            continue
        if options.write:
            page.write_text(after, encoding="utf-8")
            print(f"{page}: written")
            continue
        lines = (side.splitlines(keepends=True) for side in (before, after))
        sys.stdout.writelines(difflib.unified_diff(*lines, f"{page}", "what it prints"))
        wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
