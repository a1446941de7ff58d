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
import subprocess
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
        printed = _output(block["code"], names)
        if block["output"] is None:
            if printed:
                raise AssertionError(
                    f"{page}:{line}: prints, and no text block follows:\n{printed}"
                )
            return block[0]
        return f"```python\n{block['code']}```\n\n```text\n{printed}```\n"

    return BLOCK.sub(with_output, text)


def _output(code: str, names: dict[str, object]) -> str:
    # Messages name the file and line: as a reader sees them who pastes the block into a file.
    program = compile(code, "example.py", "exec")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(program, names)  # The pages are part of this repository.
    return re.sub(r"[ \t]+$", "", out.getvalue(), flags=re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=pathlib.Path, help="default: all with Python")
    parser.add_argument("--write", action="store_true", help="put the real output into the pages")
    options = parser.parse_args()
    if len(options.pages) != 1:
        # A process each: graphs are numbered from 1, as for a reader.
        command = [sys.executable, __file__, *(["--write"] if options.write else [])]
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
        codes = [
            subprocess.run([*command, str(page)], env=environment, check=False).returncode
            for page in options.pages or pages()
        ]
        return max(codes)
    return update(options.pages[0], write=options.write)


def update(page: pathlib.Path, *, write: bool) -> int:
    """Compares one page with what it prints, or writes that; returns the exit status."""
    before = page.read_text(encoding="utf-8")
    try:
        after = run(page)
    except Exception:
        print(f"{page}: its Python failed")
        traceback.print_exc(file=sys.stdout)
        return 1
    if after == before:
        return 0
    if write:
        page.write_text(after, encoding="utf-8")
        print(f"{page}: written")
        return 0
    lines = (side.splitlines(keepends=True) for side in (before, after))
    sys.stdout.writelines(difflib.unified_diff(*lines, f"{page}", "what it prints"))
    return 1


if __name__ == "__main__":
    sys.exit(main())
