"""The CuPy examples: they say why they cannot run, and where they can both ways end the same."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys

import numpy
import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def run(name, folder, *options, **environment):
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *options],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("name", ["cupy_jacobi.py", "cupy_cg.py"])
def test_without_a_gpu_an_example_says_why(name, tmp_path):
    done = run(name, tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    assert "driver 'cupy'" in done.stderr
    assert "Traceback" not in done.stderr


def test_residuals_are_drawn_or_written(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    convergence = importlib.import_module("convergence")
    path = tmp_path / "residuals.png"
    convergence.plot(str(path), "a title", {"eight": numpy.logspace(0, -8, 50)})
    printed = capsys.readouterr().out
    draws = importlib.util.find_spec("matplotlib") is not None
    assert path.exists() is draws
    assert ("1.00e-08" in printed) is not draws
    assert str(path) in printed
    convergence.table("size", [("8 × 8", 100, 0.5, 0.05)])
    assert "10.0" in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.slow
def test_jacobi_ends_with_the_same_plates(tmp_path):
    done = run("cupy_jacobi.py", tmp_path, "--sizes", "16", "48", "--most", "200")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "plates equal bit for bit: yes" in done.stdout


@pytest.mark.gpu
@pytest.mark.slow
def test_conjugate_gradients_solve_the_system(tmp_path):
    pytest.importorskip("nvmath")
    done = run("cupy_cg.py", tmp_path, "--sizes", "8", "32")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "replay equal to eager bit for bit: yes" in done.stdout
