"""The example adapts: better than not at all, and as its eager twin, bit for bit."""

import importlib.util
import pathlib
import re
from typing import Any

import pytest

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "online_adaptation.py"
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None,
    reason="scikit-learn, whose images these are, is not installed",
)


def run(forked: Any, *options: object) -> str:
    done = forked(EXAMPLE, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_adapting_beats_not_adapting_and_equals_eager(forked: Any) -> None:
    said = run(forked, "--batches", 120)
    assert "losses and weights equal bit for bit: yes" in said
    row = re.search(r"not adapted (\S+), adapted (\S+), eager twin (\S+)", said)
    assert row is not None
    without, adapted, eager = (float(one.rstrip(",")) for one in row.groups())
    assert adapted == eager > without + 0.1


def test_it_draws_where_it_is_told(forked: Any, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib, which draws, is not installed")
    run(forked, "--batches", 8, "--plot", tmp_path / "drift.png")
    assert (tmp_path / "drift.png").stat().st_size > 1000
