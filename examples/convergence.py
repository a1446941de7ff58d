"""What the solvers here share: how a residual is kept on the device, timed, printed and drawn."""

import math
import time

import cupy as cp

KEEP = cp.RawKernel(
    r"""
extern "C" __global__
void keep(const double* residual, double tolerance, int most, double* history, int* count, bool* on)
{
    int n = *count;
    if (n < most) history[n] = *residual;
    *count = n + 1;
    *on = *residual > tolerance && n + 1 < most;
}
""",
    "keep",
)


class History:
    """The residuals of a run, one a turn, written by the device; and whether to go on.

    `on` is the predicate of the loop, `keep(residual)` what its body ends with.
    """

    def __init__(self, tolerance, most):
        self.tolerance, self.most = tolerance, most
        self.values = cp.zeros(most)
        self.count = cp.zeros(1, dtype="i")
        self.on = cp.ones(1, dtype="?")

    def begin(self):
        self.count.fill(0)
        self.on.fill(True)

    def keep(self, residual):
        arguments = (
            residual,
            self.tolerance,
            cp.int32(self.most),
            self.values,
            self.count,
            self.on,
        )
        KEEP((1,), (1,), arguments)

    def read(self):
        return self.values[: int(self.count[0])].get()


def seconds(run, repeats=3):
    """The least time of some runs, until the device is done."""
    taken = []
    for _ in range(repeats):
        cp.cuda.Device().synchronize()
        began = time.perf_counter()
        run()
        cp.cuda.Device().synchronize()
        taken.append(time.perf_counter() - began)
    return min(taken)


def table(title, rows):
    """Prints `(what, turns, eager seconds, graph seconds)` a size."""
    print(f"\n{title:>24}   turns   eager ms   one launch ms   times faster   µs a turn")
    for what, turns, eager, graph in rows:
        print(
            f"{what:>24}  {turns:6}  {eager * 1e3:9.2f}  {graph * 1e3:14.2f}"
            f"  {eager / graph:13.1f}  {graph / turns * 1e6:10.2f}"
        )


def plot(path, title, curves):
    """Draws `{label: residuals}`: into a file if matplotlib is there, else as letters."""
    try:
        import matplotlib
    except ImportError:
        print(f"\n{title} (install matplotlib for a picture in {path})")
        for label, values in curves.items():
            print(f"  {label}")
            for place in sorted({round(k * (len(values) - 1) / 11) for k in range(12)}):
                value = max(float(values[place]), 1e-300)
                bar = "#" * max(0, round(4 * (math.log10(value) + 12)))
                print(f"    {place + 1:6}  {value:9.2e}  {bar}")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for label, values in curves.items():
        axes.semilogy(range(1, len(values) + 1), values, label=label)
    axes.set(title=title, xlabel="turn of the loop", ylabel="residual")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
    print(f"\nthe residuals are drawn in {path}")
