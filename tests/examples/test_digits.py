"""The demo learns, says what it should, and its two trainings end the same."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest

DIGITS = pathlib.Path(__file__).parents[2] / "examples" / "digits.py"
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None,
    reason="scikit-learn, whose images these are, is not installed",
)


@pytest.mark.slow
def test_both_trainings_learn_and_end_with_the_same_weights(tmp_path: pathlib.Path) -> None:
    """In an interpreter of its own from the start, as `nox -s demo` runs it."""
    done = subprocess.run(
        [sys.executable, str(DIGITS)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "weights equal bit for bit: yes" in done.stdout
    row = re.search(r"accuracy +(\S+) +(\S+)", done.stdout)
    assert row is not None
    replayed, eager = map(float, row.groups())
    assert replayed == eager > 0.95
    assert (tmp_path / "digits.dot").read_text(encoding="utf-8").startswith("digraph")


def test_the_drawing_goes_where_it_is_told(forked: Any, tmp_path: pathlib.Path) -> None:
    done = forked(DIGITS, "--epochs", "1", "--dot", "there.dot", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(tmp_path / "there.dot") in done.stdout
    assert (tmp_path / "there.dot").exists()
