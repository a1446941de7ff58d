"""A program in a fork runs as in an interpreter of its own, and leaves nothing to the next."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from .forking import Forks

ENDS = {
    "runs out": "pass",
    "a status": "import sys; sys.exit(3)",
    "a message": "import sys; sys.exit('enough')",
    "an error": "raise LookupError('gone')",
    "a signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "abruptly": "import os; os._exit(7)",
}
SHOWN = """
import __main__, os, sys
print(sys.argv, repr(sys.path[0]), os.getcwd(), __name__, getattr(__main__, "__file__", None))
print(os.environ["GIVEN"], [name for name in sys.modules if name.startswith("tensorplay")])
print("sum", sum(ord(one) for one in "é"), "é", file=sys.stderr)
"""
LEAVES = """
import atexit, os, sys, torch, warnings
print(torch.get_default_dtype(), torch.initial_seed(), os.environ.get("LEFT"), warnings.filters[0])
torch.set_default_dtype(torch.float64)
torch.manual_seed(5)
os.environ["LEFT"] = "something"
warnings.simplefilter("error")
sys.modules["torch.nn"] = None
atexit.register(print, "at its exit")
"""
THREADS = """
import threading, torch
x = torch.ones(300, 300, requires_grad=True)
done = []
thread = threading.Thread(target=lambda: (x @ x).sum().backward())
thread.start()
thread.join()
print(x.grad.sum().item())
"""


def really(*command: object, cwd: pathlib.Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, command)], cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("code", ENDS.values(), ids=ENDS)
def test_it_ends_as_an_interpreter_would(forked: Forks, tmp_path: pathlib.Path, code: str) -> None:
    told, expected = forked("-c", code), really("-c", code, cwd=tmp_path)
    assert (told.returncode, told.stdout) == (expected.returncode, expected.stdout)
    assert told.stderr.splitlines()[-1:] == expected.stderr.splitlines()[-1:]


@pytest.mark.parametrize("kind", ["code", "script", "module"])
def test_it_is_called_as_an_interpreter_would_call_it(
    forked: Forks, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tmp_path / "shown.py").write_text(SHOWN, encoding="utf-8")
    command = {"code": ["-c", SHOWN], "script": ["shown.py"], "module": ["-m", "shown"]}[kind]
    monkeypatch.setenv("GIVEN", "a value")
    told = forked(*command, "--word", 1, cwd=tmp_path)
    expected = really(*command, "--word", 1, cwd=tmp_path)
    assert (told.returncode, told.stdout, told.stderr) == (0, expected.stdout, expected.stderr)
    assert "'--word', '1'" in told.stdout


def test_the_next_sees_nothing_of_it(forked: Forks) -> None:
    first, second = forked("-c", LEAVES), forked("-c", LEAVES)
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("torch.float32")
    assert first.stdout.endswith("at its exit\n")
    assert first.stdout == second.stdout


def test_threads_start_in_it(forked: Forks) -> None:
    assert forked("-c", THREADS, timeout=60).stdout == f"{2 * 300.0**3}\n"


def test_what_takes_too_long_is_killed_and_the_next_runs(forked: Forks) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        forked("-c", "while True: pass", timeout=0.1)
    assert forked("-c", "print('next')").stdout == "next\n"
