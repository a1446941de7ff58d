"""One version for four packages, said alike in every place."""

import importlib
import importlib.metadata
import pathlib
import re
import tomllib
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[2]
NAMES = ["tensorplay-core", "tensorplay-torch", "tensorplay-adapt", "tensorplay-cupy"]


def project(name: str) -> dict[str, Any]:
    text = (ROOT / "packages" / name / "pyproject.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)["project"]


def requirements(name: str) -> list[str]:
    table = project(name)
    extras = table.get("optional-dependencies", {})
    return [*table["dependencies"], *(item for extra in extras.values() for item in extra)]


def test_the_four_versions_agree() -> None:
    assert len({project(name)["version"] for name in NAMES}) == 1


@pytest.mark.parametrize("name", NAMES)
def test_siblings_are_pinned_to_the_same_version(name: str) -> None:
    siblings = [item for item in requirements(name) if item.startswith("tensorplay-")]
    version = re.escape(project(name)["version"])
    loose = [item for item in siblings if not re.fullmatch(rf"[a-z-]+(\[\w+\])?=={version}", item)]
    assert not loose
    assert siblings or name == "tensorplay-core"


@pytest.mark.parametrize("name", NAMES)
def test_the_module_the_metadata_and_the_project_file_say_one_version(name: str) -> None:
    module = importlib.import_module(name.replace("-", "_"))
    assert module.__version__ == importlib.metadata.version(name) == project(name)["version"]


def test_the_changelog_has_a_section_for_what_comes_and_one_for_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## [Unreleased]" in text
    assert f"## [{project('tensorplay-core')['version']}]" in text
