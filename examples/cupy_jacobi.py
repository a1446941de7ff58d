"""Heat diffusion to equilibrium by Jacobi sweeps: the whole loop in one launch.

A square plate is held at 1 on one edge and at 0 on the others; each sweep puts every inner point to
the mean of its neighbours, until nothing moves by more than the tolerance. The graph's while node
decides on the device; the eager loop beside it asks the host after each sweep, as CuPy code does.
Both must end with the same plate, bit for bit. It needs a GPU: `python cupy_jacobi.py`.
"""

import argparse
import sys

try:
    import cupy as cp
    from convergence import History, plot, seconds, table

    from tensorplay_cupy import CUDAGraph, DriverUnavailable, graph
except ImportError as error:
    sys.exit(f"{error}: pip install 'tensorplay-cupy[cuda13]'")

SWEEP = cp.ElementwiseKernel(
    "raw float64 u, int32 n",
    "float64 v, float64 moved",
    """
    int row = i / n, column = i % n;
    bool edge = row == 0 || row == n - 1 || column == 0 || column == n - 1;
    v = edge ? u[i] : 0.25 * (u[i - 1] + u[i + 1] + u[i - n] + u[i + n]);
    moved = fabs(v - u[i]);
    """,
    "jacobi_sweep",
)


class Plate:
    """A plate of `n × n` points, two sweeps a turn, so that the newest state is always in `u`."""

    def __init__(self, n, tolerance, most):
        self.n = n
        self.u, self.v, self.moved = (cp.zeros((n, n)) for _ in range(3))
        self.history = History(tolerance, most)

    def begin(self):
        self.u.fill(0)
        self.u[0].fill(1)
        self.history.begin()

    def turn(self):
        SWEEP(self.u, self.n, self.v, self.moved)
        SWEEP(self.v, self.n, self.u, self.moved)
        self.history.keep(self.moved.max())

    def run_eagerly(self):
        self.begin()
        while bool(self.history.on[0]):
            self.turn()

    def capture(self):
        self.begin()
        self.turn()  # Compiles the kernels, which a capture should not.
        with graph(CUDAGraph()) as g:
            self.begin()
            with g.while_loop(self.history.on):
                self.turn()
        return g


def solve(n, tolerance, most):
    """Runs both ways; returns turns, seconds of each, the residuals, and the plates."""
    plate = Plate(n, tolerance, most)
    g = plate.capture()
    replayed = seconds(g.replay)
    turns, residuals, ours = int(plate.history.count[0]), plate.history.read(), plate.u.copy()
    eagerly = seconds(plate.run_eagerly, repeats=1)
    same = bool((plate.u == ours).all()) and int(plate.history.count[0]) == turns
    g.close()
    return turns, eagerly, replayed, residuals, same


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 128, 256, 512, 1024, 2048])
    parser.add_argument("--tolerance", type=float, default=1e-6)
    parser.add_argument("--most", type=int, default=5000, help="turns of two sweeps at the most")
    parser.add_argument("--plot", default="cupy_jacobi.png", help="where the residuals are drawn")
    options = parser.parse_args()

    try:
        CUDAGraph()
    except DriverUnavailable as error:
        sys.exit(str(error))
    rows, curves, every = [], {}, True
    for n in options.sizes:
        turns, eagerly, replayed, residuals, same = solve(n, options.tolerance, options.most)
        rows.append((f"{n} × {n}", turns, eagerly, replayed))
        curves[f"{n} × {n}"] = residuals
        every = every and same
    table("plate", rows)
    print(f"\nplates equal bit for bit: {'yes' if every else 'no'}")
    plot(options.plot, "Jacobi sweeps to equilibrium, decided on the device", curves)
    return 0 if every else 1


if __name__ == "__main__":
    sys.exit(main())
