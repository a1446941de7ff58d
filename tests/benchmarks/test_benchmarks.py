"""The benchmarks' own machinery: records, timing, the runner and the summary of GPU tests."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import pytest

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
FIELDS = [
    *("name", "unit", "ours", "floor", "peers", "ratio"),
    *("goal", "met", "versions", "gpu", "date", "note"),
]


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the folder, which is on the path only while a test runs."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield __import__
    for name in set(sys.modules) - before:
        if str(BENCHMARKS) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )


def test_a_record_has_the_agreed_fields_and_the_ratio_of_its_first_goal(modules: Any) -> None:
    record = modules("record")
    timing = modules("timing").Timing
    goals = [record.at_most(1.25), record.faster(2, "torch")]
    one = record.record(
        "x", {"ours": timing(3.0, 2.5, 4.0), "floor": 2.4, "torch": 6.0}, unit="µs", goals=goals
    )
    assert list(one) == FIELDS
    assert (one["ours"], one["floor"], one["peers"]) == (3.0, 2.4, {"torch": 6.0})
    assert one["ratio"] == pytest.approx(1.25)
    assert one["met"] is True
    assert one["goal"] == "≤ 1.25 × floor and ≥ 2 × faster than torch"
    assert "ours 2.5–4" in one["note"]
    json.dumps(one)


@pytest.mark.parametrize(("ours", "met"), [(1.0, True), (1.1, False)])
def test_a_goal_is_met_or_missed(modules: Any, ours: float, met: bool) -> None:
    record = modules("record")
    goals = [record.at_most(1, None)]
    assert record.record("x", {"ours": ours}, unit="MiB", goals=goals)["met"] is met


def test_all_goals_must_be_met(modules: Any) -> None:
    record = modules("record")
    goals = [record.at_most(1.25), record.faster(4, "torch")]
    one = record.record("x", {"ours": 1, "floor": 1, "torch": 3}, unit="µs", goals=goals)
    assert one["met"] is False


def test_a_goal_against_something_unmeasured_is_an_error(modules: Any) -> None:
    record = modules("record")
    with pytest.raises(ValueError, match="floor"):
        record.record("x", {"ours": 1.0}, unit="µs", goals=[record.at_most(1)])
    with pytest.raises(KeyError):
        record.record("x", {"ours": 1.0}, unit="µs", goals=[record.faster(1, "torch")])


def test_contenders_take_turns_and_each_gives_the_median_of_its_rounds(modules: Any) -> None:
    timing = modules("timing")
    turns: list[str] = []
    pace = {"slow": iter([9.0, 2.0, 3.0]), "fast": iter([1.0, 1.0, 1.0])}

    def contender(name: str) -> Any:
        def batch(calls: int) -> float:
            if calls == 1:  # The warm-up of a round, which does not count.
                return 1e9
            turns.append(name)
            return next(pace[name]) * calls

        return batch

    measured = timing.microseconds(
        {name: contender(name) for name in pace},
        synchronize=lambda: None,
        calls=10,
        batches=1,
        rounds=3,
    )
    assert measured["slow"] == pytest.approx((3e6, 2e6, 9e6))
    assert measured["fast"].median == pytest.approx(1e6)
    assert sorted(turns[:2]) == sorted(turns[2:4]) == ["fast", "slow"]
    assert turns[0] != turns[2]


def test_the_list_names_every_benchmark() -> None:
    done = run(BENCHMARKS / "run.py", "--list")
    assert done.returncode == 0, done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines()} >= {
        *("host_step", "replay_1", "replay_n", "while_1000", "stage_16", "stage_n"),
        *("capture_mlp", "update_mlp", "pool_24_layers", "soak_cycles", "soak_launches"),
    }


def test_an_unknown_name_is_refused() -> None:
    done = run(BENCHMARKS / "run.py", "replay_0")
    assert done.returncode == 2
    assert "replay_0" in done.stderr


def test_a_benchmark_that_fails_is_named_and_makes_the_run_fail(
    modules: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, capsys: Any
) -> None:
    """Its process dies, and the others still run and are written."""
    runner = modules("run")
    child = tmp_path / "child.py"
    child.write_text(
        "import pathlib, sys\n"
        "if sys.argv[1] == 'bad': sys.exit(3)\n"
        'record = \'{"name": "good", "ours": 1, "floor": null, "peers": {}, \''
        '\'"unit": "µs", "goal": ""}\'\n'
        "pathlib.Path(sys.argv[3]).write_text(f'[{record}]', encoding='utf-8')\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(runner, "__file__", str(child))
    kept = tmp_path / "kept.json"
    records, failed = runner.measure_all(["good", "bad"], 60, kept)
    assert [one["name"] for one in records] == ["good"]
    assert json.loads(kept.read_text(encoding="utf-8")) == records
    assert failed == ["bad"]
    assert "bad: FAILED, exit status 3" in capsys.readouterr().out


def test_a_run_is_called_by_its_benchmark_or_its_theme(modules: Any) -> None:
    runner = modules("run")
    known = runner.find()
    assert runner.title(["replay_1"], known) == "replay_1"
    assert runner.title(["soak_cycles", "soak_launches"], known) == "soak"
    assert runner.title(["replay_1", "stage_16"], known) == "run"


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not installed")
def test_the_floor_compiles(tmp_path: pathlib.Path) -> None:
    options = ["-std=c++17", "-shared", "-Xcompiler", "-fPIC", "-arch=sm_90"]
    library = tmp_path / "floor.so"
    command = ["nvcc", *options, "-o", str(library), str(BENCHMARKS / "floor.cu")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_summary_of_gpu_tests_counts_and_gives_reasons(tmp_path: pathlib.Path) -> None:
    (tmp_path / "tests.xml").write_text(
        "<testsuites><testsuite>"
        '<testcase classname="t" name="passes" time="0.5"/>'
        '<testcase classname="t" name="skips"><skipped message="one GPU only"/></testcase>'
        '<testcase classname="t" name="fails"><failure/></testcase>'
        "</testsuite></testsuites>",
        encoding="utf-8",
    )
    out = tmp_path / "summary.json"
    done = run(BENCHMARKS / "gpu_tests.py", tmp_path / "tests.xml", "--out", out)
    assert done.returncode == 1
    suite = json.loads(out.read_text(encoding="utf-8"))["suites"]["tests"]
    assert suite["passed"] == 1
    assert suite["failed"] == ["t::fails"]
    assert suite["skipped"] == {"one GPU only": 1}


def test_a_report_that_is_missing_is_an_error(tmp_path: pathlib.Path) -> None:
    done = run(
        BENCHMARKS / "gpu_tests.py", tmp_path / "none.xml", "--out", tmp_path / "summary.json"
    )
    assert done.returncode == 1
    assert "no report" in done.stdout
