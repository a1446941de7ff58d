"""What the README and the guide say is what happens."""

import importlib
import pathlib
import re
from typing import Any

import pytest

from tensorplay_core import discovery, select

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples.py"
PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    if "```python\n" in page.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_prints_what_the_page_shows(forked: Any, page: str) -> None:
    done = forked(EXAMPLES, page, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_tables_are_in_step_with_the_code(forked: Any) -> None:
    done = forked(ROOT / "docs" / "tables.py", cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "name", [one.name for one in discovery.find_drivers() if one.reason is None]
)
def test_the_table_of_drivers_says_what_the_runtime_says(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    tables = importlib.import_module("tables")
    assert tables.implemented(name) == select(name).nouns()


@pytest.mark.parametrize(
    "text",
    [
        "```python\nprint(1)\n```\n\n```text\n2\n```\n",
        "```python\nprint(1)\n```\n",
        "```python\nraise ValueError\n```\n",
    ],
    ids=["other output", "output not shown", "an error"],
)
def test_a_page_that_is_not_true_is_found(forked: Any, text: str, tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    assert forked(EXAMPLES, page, cwd=ROOT).returncode == 1


def test_the_links_between_pages_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *(ROOT / "docs").rglob("*.md")]
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert not dead


def test_every_test_that_a_page_names_is_there() -> None:
    suite = ROOT / "packages/tensorplay-core/src/tensorplay_core/testing/suite"
    missing, known = [], 0
    for page in (ROOT / "docs").rglob("*.md"):
        named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", page.read_text(encoding="utf-8"))
        for file, test in named:
            folder, _, name = file.partition("/")
            path = suite / name if folder == "suite" else ROOT / "tests" / file
            known += 1
            if not path.exists() or f"def {test}(" not in path.read_text(encoding="utf-8"):
                missing.append(f"{page.name}: {file}::{test}")
    assert not missing
    assert known > 50


def test_the_readme_is_short_and_names_the_two_commands() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120
    assert "python -m pip install nox && python -m nox -s demo" in lines
    assert "python -m nox -s tests" in lines
