"""Building the compiled parts, finding them, and doing without."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tensorplay_torch import compiled
from tensorplay_torch.compiled import __main__ as building
from tensorplay_torch.compiled import places


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that holds nothing."""
    monkeypatch.setenv(places.CACHE, str(tmp_path))
    return tmp_path


def summary(**environment: str) -> str:
    """What another process says of them."""
    code = "from tensorplay_torch import compiled; print(compiled.summary())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_the_place_depends_on_what_they_are_built_from(elsewhere, monkeypatch):
    place = places.library()
    assert place.is_relative_to(elsewhere)
    assert place == places.library()
    monkeypatch.setattr("torch.__version__", "99.0")
    assert places.library() != place


def test_the_place_is_the_user_s_cache(monkeypatch, tmp_path):
    monkeypatch.delenv(places.CACHE, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert places.library().is_relative_to(tmp_path / "tensorplay")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert places.library().is_relative_to(Path.home() / ".cache" / "tensorplay")


@pytest.mark.parametrize("tool", ["c++", "ninja"])
def test_a_missing_tool_is_named(elsewhere, monkeypatch, capsys, tool):
    monkeypatch.setattr(
        "shutil.which", lambda name: None if name in (tool, "cl") else f"/usr/bin/{name}"
    )
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert building.main([]) == 1
    said = capsys.readouterr().err
    assert "compiler" in said if tool == "c++" else "pip install ninja" in said


def test_a_compiler_s_failure_is_shown(elsewhere, monkeypatch, capsys):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("error: expected primary-expression")

    monkeypatch.setattr(building, "_missing", lambda: None)
    monkeypatch.setattr(building, "build", fail)
    assert building.main([]) == 1
    assert "expected primary-expression" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_named(elsewhere, monkeypatch, capsys):
    monkeypatch.setattr(building, "_missing", lambda: None)
    blocked = elsewhere / "file"
    blocked.write_text("")
    monkeypatch.setenv(places.CACHE, str(blocked))
    assert building.main([]) == 1
    assert str(blocked) in capsys.readouterr().err


def test_a_library_that_does_not_fit_is_left_alone(elsewhere, caplog, monkeypatch):
    monkeypatch.delenv(places.ENABLED, raising=False)
    path = places.library()
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no library")
    with caplog.at_level(logging.WARNING):
        assert compiled._load() is None
    assert compiled.BUILD in caplog.text


@pytest.mark.parametrize("error", [PermissionError(13, "no"), RuntimeError("no home")])
def test_a_cache_that_cannot_be_looked_at_is_none(monkeypatch, error):
    def refuse() -> Path:
        raise error

    monkeypatch.delenv(places.ENABLED, raising=False)
    monkeypatch.setattr(compiled, "library", refuse)
    assert compiled._load() is None


def test_doing_without(elsewhere):
    assert summary(TENSORPLAY_COMPILED="0") == "switched off by TENSORPLAY_COMPILED=0"
    assert compiled.BUILD in summary(TENSORPLAY_COMPILED="1")


@pytest.mark.skipif(
    compiled.parts() is None, reason=f"the compiled parts are not in use: {compiled.summary()}"
)
def test_what_is_built_is_found(capsys):
    assert building.main([]) == 0
    assert Path(capsys.readouterr().out.strip()) == places.library()
    assert summary() == "in use"
