"""Runs benchmarks, each in a process of its own, and writes what they measured as JSON.

    python benchmarks/run.py                       all that this machine can run
    python benchmarks/run.py --list                their names
    python benchmarks/run.py replay_1 stage_16     these

The exit status is 1 if a benchmark failed to measure. A goal missed is printed and recorded.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import floor

if TYPE_CHECKING:
    from record import Record

THEMES = (
    "host",
    "replay",
    "loops",
    "staging",
    "callables",
    "adapt",
    "capture",
    "memory",
    "cupy_graphs",
    "soak",
)
RESULTS = pathlib.Path(__file__).parent / "results"


class Benchmark(NamedTuple):
    """One that can be asked for by name."""

    measure: Callable[[], list[Record]]
    theme: str
    about: str
    needs_gpu: bool
    by_default: bool


def find() -> dict[str, Benchmark]:
    """Every benchmark of every theme."""
    found = {}
    for theme in THEMES:
        module = importlib.import_module(theme)
        for measure in module.BENCHMARKS:
            about = (measure.__doc__ or "").partition("\n")[0]
            by_default = getattr(module, "BY_DEFAULT", True)
            found[measure.__name__] = Benchmark(measure, theme, about, module.NEEDS_GPU, by_default)
    return found


def gpus() -> int:
    """How many devices NVIDIA's driver sees."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Text)
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all that can run here")
    parser.add_argument("--list", action="store_true", help="name the benchmarks and stop")
    parser.add_argument(
        "--out", type=pathlib.Path, help=f"a .json file, or a folder (default {RESULTS})"
    )
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one benchmark")
    parser.add_argument("--child", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    known = find()
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"no benchmark is called {', '.join(unknown)}; --list names them")
    if options.list:
        for name, one in known.items():
            print(f"{name:16} {'GPU' if one.needs_gpu else 'CPU'}  {one.about}")
        return 0
    if options.child:
        records = [record for name in options.names for record in known[name].measure()]
        options.child.write_text(json.dumps(records), encoding="utf-8")
        return 0

    present = gpus()
    chosen = options.names or [
        name for name, one in known.items() if one.by_default and (present or not one.needs_gpu)
    ]
    if not present:
        needing = [name for name in options.names or known if known[name].needs_gpu]
        if needing:
            print(f"no NVIDIA GPU is here; these need one: {', '.join(needing)}")
        if options.names and needing:
            return 1
    path = destination(options.out, title(chosen, known))
    written, failed = measure_all(chosen, options.timeout, path)
    if written:
        print(f"written to {path}")
    if failed:
        print(f"failed to measure: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


class Text(argparse.RawDescriptionHelpFormatter):
    """Leaves the description's lines as they are."""


def measure_all(
    names: Sequence[str], timeout: float, path: pathlib.Path
) -> tuple[list[Record], list[str]]:
    """Runs each in a process of its own; returns the records and the names of those that failed.

    After each the records so far are written to ``path``: an end before the last loses none.
    """
    records: list[Record] = []
    failed = []
    with tempfile.TemporaryDirectory(prefix="tensorplay-bench-") as folder:
        environment = os.environ | {floor.FOLDER: folder}
        for name in names:
            out = pathlib.Path(folder) / f"{name}.json"
            command = [sys.executable, __file__, name, "--child", str(out)]
            try:
                done = subprocess.run(command, env=environment, timeout=timeout, check=False)
                status = f"exit status {done.returncode}" if done.returncode else ""
            except subprocess.TimeoutExpired:
                status = f"still running after {timeout:g} s"
            if status or not out.exists():
                print(f"{name}: FAILED, {status or 'no record'}", flush=True)
                failed.append(name)
                continue
            for one in json.loads(out.read_text(encoding="utf-8")):
                print(line(one), flush=True)
                records.append(one)
            text = json.dumps(records, indent=1, ensure_ascii=False)
            path.write_text(f"{text}\n", encoding="utf-8")
    return records, failed


def line(one: Record) -> str:
    """A record, for people."""
    others = {"floor": one["floor"]} if one["floor"] is not None else {}
    others |= one["peers"]
    parts = [f"ours {one['ours']:.4g}", *(f"{label} {x:.4g}" for label, x in others.items())]
    text = f"{one['name']:18} {', '.join(parts)} {one['unit']}"
    if one["goal"]:
        ratio = f"; ratio {one['ratio']:.3g}" if one["ratio"] is not None else ""
        text += f"{ratio}; goal {one['goal']}: {'met' if one['met'] else 'MISSED'}"
    return text


def title(names: Sequence[str], known: Mapping[str, Benchmark]) -> str:
    """What the file of a run is called: the benchmark, its theme where they share one, or `run`."""
    if len(names) == 1:
        return names[0]
    themes = {known[name].theme for name in names}
    return themes.pop() if len(themes) == 1 else "run"


def destination(out: pathlib.Path | None, called: str) -> pathlib.Path:
    """`out` if it is a file's name, else `<called>-<date>.json` in it."""
    if out is not None and out.suffix == ".json":
        out.parent.mkdir(parents=True, exist_ok=True)
        return out
    folder = out or RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{called}-{datetime.datetime.now(datetime.UTC).date()}.json"


if __name__ == "__main__":
    sys.exit(main())
