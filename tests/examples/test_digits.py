"""The demo learns, says what it should, and its two trainings end the same."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

DIGITS = pathlib.Path(__file__).parents[2] / "examples" / "digits.py"


def run(folder: pathlib.Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(DIGITS), *options],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )


@pytest.mark.slow
def test_both_trainings_learn_and_end_with_the_same_weights(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn, whose images these are, is not installed")
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "weights equal bit for bit: yes" in done.stdout
    row = re.search(r"accuracy +(\S+) +(\S+)", done.stdout)
    assert row is not None
    replayed, eager = map(float, row.groups())
    assert replayed == eager > 0.95
    assert (tmp_path / "digits.dot").read_text(encoding="utf-8").startswith("digraph")


def test_the_drawing_goes_where_it_is_told(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn, whose images these are, is not installed")
    done = run(tmp_path, "--epochs", "1", "--dot", "there.dot")
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(tmp_path / "there.dot") in done.stdout
    assert (tmp_path / "there.dot").exists()
