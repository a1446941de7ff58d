"""Libraries that users build: where they are, finding them, and doing without."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tensorplay_core import compiled
from tensorplay_core.compiled import __main__ as building
from tensorplay_core.compiled import places


@pytest.fixture(autouse=True)
def on(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not switched off."""
    monkeypatch.delenv(places.ENABLED, raising=False)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that holds nothing."""
    monkeypatch.setenv(places.CACHE, str(tmp_path))
    return tmp_path


def summary(**environment: str) -> str:
    """What another process says of the launch."""
    code = "from tensorplay_core import compiled; print(compiled.summary())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_the_place_depends_on_what_they_are_built_from(elsewhere: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.c"
    source.write_text("1")
    place = places.library("a", [source], "torch 1")
    assert place.is_relative_to(elsewhere)
    assert place == places.library("a", [source], "torch 1")
    assert place != places.library("a", [source], "torch 2")
    source.write_text("2")
    assert place != places.library("a", [source], "torch 1")


def test_a_missing_compiler_is_named(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", "some-cc -O2")
    monkeypatch.setattr(building.shutil, "which", lambda name: None)
    assert building.main([]) == 1
    said = capsys.readouterr().err
    assert "no C compiler 'some-cc'" in said
    assert "Install one" in said
    assert not list(elsewhere.iterdir())


def test_visual_studio_s_is_left_to_setuptools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(name: str) -> None:
        raise ImportError(f"came to {name}")

    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(building.shutil, "which", lambda name: None)
    monkeypatch.setattr(building, "import_module", found)
    with pytest.raises(ImportError, match="came to setuptools"):
        building.build(tmp_path / "launch.pyd")


def test_the_place_is_the_user_s_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(places.CACHE, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compiled.place().is_relative_to(tmp_path / "tensorplay")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert compiled.place().is_relative_to(Path.home() / ".cache" / "tensorplay")


def test_a_library_that_does_not_fit_is_left_alone(
    elsewhere: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = elsewhere / "odd.so"
    path.write_bytes(b"no library")
    with caplog.at_level(logging.WARNING):
        assert places.look_for("odd", lambda: path, "python -m build_it") is None
    assert "python -m build_it --force" in caplog.text


@pytest.mark.parametrize("error", [PermissionError(13, "no"), RuntimeError("no home")])
def test_a_cache_that_cannot_be_looked_at_is_none(error: Exception) -> None:
    def refuse() -> Path:
        raise error

    assert places.look_for("odd", refuse, "") is None


def test_doing_without(elsewhere: Path) -> None:
    assert summary(TENSORPLAY_COMPILED="0") == "switched off by TENSORPLAY_COMPILED=0"
    assert compiled.BUILD in summary(TENSORPLAY_COMPILED="1")


def test_a_place_that_cannot_be_written_is_named(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = elsewhere / "file"
    blocked.write_text("")
    monkeypatch.setenv(places.CACHE, str(blocked))
    assert building.main([]) == 1
    said = capsys.readouterr().err
    assert str(blocked) in said
    assert places.CACHE in said


def test_it_is_built_and_found(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("setuptools", reason="setuptools, which compiles, is not installed")
    monkeypatch.chdir(elsewhere)
    assert building.main([]) == 0
    path = Path(capsys.readouterr().out.strip().splitlines()[-1])
    assert path == compiled.place()
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    assert summary() == "in use"
    before = path.stat().st_mtime_ns
    assert building.main([]) == 0
    assert path.stat().st_mtime_ns == before
    path.unlink()  # Its memory is this process's by now.
    path.write_bytes(b"no library")
    subprocess.run(compiled.BUILD.replace("python", sys.executable).split(), check=True)
    assert summary() == "in use"


def test_a_compiler_s_failure_is_shown(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(path: Path) -> None:
        raise RuntimeError("error: expected primary-expression")

    path = elsewhere / "key" / "x.so"
    assert building.provide(path, fail, name="x") == 1
    assert "expected primary-expression" in capsys.readouterr().err
    assert not path.parent.exists()


def test_a_cache_in_the_user_s_home_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(places.CACHE, "~/there")
    assert compiled.place().is_relative_to(Path.home() / "there")
