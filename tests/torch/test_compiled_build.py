"""Building the compiled parts for a torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorplay_core.compiled.places import CACHE, ENABLED
from tensorplay_torch import compiled
from tensorplay_torch.compiled import __main__ as building


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that holds nothing."""
    monkeypatch.setenv(CACHE, str(tmp_path))
    return tmp_path


def test_they_are_of_one_torch(elsewhere, monkeypatch):
    place = compiled.place()
    assert place.is_relative_to(elsewhere)
    monkeypatch.setattr("torch.__version__", "99.0")
    assert compiled.place() != place


@pytest.mark.parametrize("tool", ["c++", "ninja"])
def test_a_missing_tool_is_named(elsewhere, monkeypatch, capsys, tool):
    monkeypatch.setattr(
        "shutil.which", lambda name: None if name in (tool, "cl") else f"/usr/bin/{name}"
    )
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(building.core, "main", lambda arguments: 0)
    assert building.main([]) == 1
    said = capsys.readouterr().err
    assert "compiler" in said if tool == "c++" else "pip install ninja" in said


def test_a_compiler_s_failure_is_shown(elsewhere, monkeypatch, capsys):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("error: expected primary-expression")

    monkeypatch.setattr(building, "build", fail)
    assert building.main([]) == 1
    assert "expected primary-expression" in capsys.readouterr().err


def test_what_is_said_of_them(elsewhere, monkeypatch):
    monkeypatch.setattr(compiled, "_parts", None)
    monkeypatch.setenv(ENABLED, "0")
    assert compiled.summary() == "switched off by TENSORPLAY_COMPILED=0"
    monkeypatch.delenv(ENABLED)
    assert "not built" in compiled.summary()
    compiled.place().parent.mkdir()
    compiled.place().write_bytes(b"no library")
    assert f"{compiled.BUILD} --force" in compiled.summary()
    monkeypatch.setattr(compiled, "_parts", object())
    assert compiled.summary() == "in use"


@pytest.mark.skipif(
    compiled.parts() is None, reason=f"the compiled parts are not in use: {compiled.summary()}"
)
def test_what_is_built_is_found(capsys, monkeypatch):
    monkeypatch.setattr(building, "_missing", lambda: "nothing is needed for it")
    assert building.main([]) == 0
    assert Path(capsys.readouterr().out.strip().splitlines()[-1]) == compiled.place()
