"""The example adapts: better than not at all, and as its eager twin, bit for bit."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "online_adaptation.py"


def run(*options: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *options],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_adapting_beats_not_adapting_and_equals_eager(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn, whose images these are, is not installed")
    said = run("--batches", "120")
    assert "losses and weights equal bit for bit: yes" in said
    row = re.search(r"not adapted (\S+), adapted (\S+), eager twin (\S+)", said)
    assert row is not None
    without, adapted, eager = (float(one.rstrip(",")) for one in row.groups())
    assert adapted == eager > without + 0.1


def test_it_draws_where_it_is_told(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn, whose images these are, is not installed")
    pytest.importorskip("matplotlib", reason="matplotlib, which draws, is not installed")
    run("--batches", "8", "--plot", str(tmp_path / "drift.png"))
    assert (tmp_path / "drift.png").stat().st_size > 1000
