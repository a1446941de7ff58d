"""``python -m tensorplay_core`` as users run it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tensorplay_core", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("asked", "said"),
    [("host", "driver 'host', by TENSORPLAY_DRIVER=host"), ("nope", "none, by TENSORPLAY_DRIVER")],
)
def test_it_says_which_driver_is_chosen(forked: Any, asked: str, said: str) -> None:
    done = forked("-m", "tensorplay_core", TENSORPLAY_DRIVER=asked)
    assert done.returncode == 0, done.stderr
    assert f"where no other is named: {said}" in done.stdout
    assert "pluggy" in done.stdout
    assert "  host (priority 0)" in done.stdout


def test_arguments_are_refused_and_help_is_given() -> None:
    assert run("--help").returncode == 0
    wrong = run("--drivers")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "usage" in wrong.stderr


def test_a_closed_pipe_is_no_error() -> None:
    code = f"{sys.executable} -m tensorplay_core | head -c 10 >/dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() in ("0", "141")
    assert "Traceback" not in done.stderr
