"""CuPy: what a launch costs beside CuPy's own graph, and loops of the device beside eager ones."""

from __future__ import annotations

import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

from record import Record, at_most, faster, record
from timing import Contender, Timing, microseconds, statement

NEEDS_GPU = True
EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
SWEEPS = 1000
PLATES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Points a side. Up to `LAUNCH_BOUND` the host is what an eager loop waits for."""
LAUNCH_BOUND = 256
SYSTEMS = (16, 32, 64, 128, 256, 512, 1024)
TURNS = 300


def cupy_replay() -> list[Record]:
    """Host time of one launch of a graph of CuPy kernels, beside cupy.cuda.Graph.launch."""
    return [
        record_of for nodes, calls in ((1, 200), (10, 100)) for record_of in _replay(nodes, calls)
    ]


def cupy_while() -> list[Record]:
    """Jacobi sweeps of a plate, 1000 of them: a while node beside the loop that asks the host."""
    jacobi = _example("cupy_jacobi")
    records = []
    for n in PLATES:
        # Never still enough, so that all run alike; two sweeps a turn.
        plate = jacobi.Plate(n, -1.0, SWEEPS // 2)
        g = plate.capture()
        g.replay()
        ours = plate.u.copy()
        plate.run_eagerly()
        _same(ours, plate.u, f"the plate of {n}")
        measured = _whole({"ours": g.replay, "eager loop": plate.run_eagerly}, SWEEPS)
        records.append(
            record(
                f"cupy_while_{n}",
                measured,
                unit="µs",
                goals=[faster(3, "eager loop")] if n <= LAUNCH_BOUND else [],
                note=f"a sweep of {n} × {n} float64, end to end, medians; {SWEEPS} sweeps a run, "
                "the end tested every second one; the eager loop reads the test back",
            )
        )
        g.close()
    return records


def cupy_cg() -> list[Record]:
    """Turns of conjugate gradients: a while node beside CuPy's own products in an eager loop."""
    cg = _example("cupy_cg")
    import cupy

    records = []
    for n in SYSTEMS:
        matrix = cg.laplacian(n)
        b = cupy.random.default_rng(0).standard_normal(n * n)
        ours, plain = (kind(matrix, b, -1.0, TURNS) for kind in (cg.System, cg.Plain))
        g = ours.capture()
        g.replay()
        replayed = ours.x.copy()
        ours.run_eagerly()
        _same(replayed, ours.x, f"the solution of {n * n} unknowns")
        plain.run_eagerly()
        contenders = {
            "ours": g.replay,
            "eager loop": plain.run_eagerly,
            "eager loop, our products": ours.run_eagerly,
        }
        records.append(
            record(
                f"cupy_cg_{n}",
                _whole(contenders, TURNS),
                unit="µs",
                goals=[faster(3, "eager loop")] if n <= LAUNCH_BOUND // 2 else [],
                note=f"a turn with {n * n} unknowns in float64, end to end, medians; {TURNS} turns "
                "a run; the eager loop is CuPy's @ and dot, and reads the test back",
            )
        )
        g.close()
    return records


def _replay(nodes: int, calls: int) -> list[Record]:
    import cupy

    import tensorplay_cupy as tp

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x, y = (cupy.zeros(1, dtype=cupy.float32) for _ in range(2))
        x += 1
        y += 1
        stream.synchronize()
        with tp.graph(tp.CUDAGraph()) as ours:
            for _ in range(nodes):
                x += 1
        stream.begin_capture()
        for _ in range(nodes):
            y += 1
        theirs = stream.end_capture()
        for array, launch in ((x, ours.replay), (y, theirs.launch)):
            array.fill(0)
            launch(stream)
            if float(array[0]) != nodes:
                raise RuntimeError(f"a replay added {float(array[0])}, not {nodes}")
        contenders: dict[str, Contender] = {
            "ours": statement("g.replay(stream)", g=ours, stream=stream),
            "ours current": statement("g.replay()", g=ours),
            "cupy": statement("g.launch(stream)", g=theirs, stream=stream),
            "cupy current": statement("g.launch()", g=theirs),
        }
        measured = microseconds(contenders, synchronize=stream.synchronize, calls=calls, batches=10)
    note = "host time, medians"
    return [
        record(
            f"cupy_replay_{nodes}",
            {"ours": measured["ours"], "cupy": measured["cupy"]},
            unit="µs",
            goals=[at_most(1, "cupy")],
            note=f"replay(cupy.cuda.Stream) beside launch(stream); {note}",
        ),
        record(
            f"cupy_replay_{nodes}_current",
            {"ours": measured["ours current"], "cupy": measured["cupy current"]},
            unit="µs",
            goals=[at_most(1, "cupy")],
            note=f"replay() beside launch(); {note}",
        ),
    ]


def _whole(contenders: dict[str, Callable[[], Any]], turns: int) -> dict[str, Timing]:
    """Microseconds of a turn, of runs of `turns`, until the device is done."""
    import cupy

    synchronize = cupy.cuda.Device().synchronize

    def until_done(run: Callable[[], Any]) -> Contender:
        def whole(calls: int) -> float:
            began = time.perf_counter()
            for _ in range(calls):
                run()
            synchronize()
            return time.perf_counter() - began

        return whole

    measured = microseconds(
        {label: until_done(run) for label, run in contenders.items()},
        synchronize=synchronize,
        calls=1,
        batches=1,
        rounds=5,
    )
    return {label: timing.scaled(1 / turns) for label, timing in measured.items()}


def _same(one: Any, other: Any, what: str) -> None:
    if not bool((one == other).all()):
        raise RuntimeError(f"{what} by the graph is not that of the eager loop, bit for bit")


def _example(name: str) -> Any:
    sys.path.insert(0, str(EXAMPLES))
    try:
        return __import__(name)
    except SystemExit as error:
        raise RuntimeError(str(error)) from error
    finally:
        sys.path.remove(str(EXAMPLES))


BENCHMARKS = (cupy_replay, cupy_while, cupy_cg)
