"""Conjugate gradients on a sparse system: the whole solve in one launch.

The matrix is the five-point Laplacian of a square grid, the right side random. A turn of the loop
is one product with the sparse matrix, two dot products and three vector updates; the graph's while
node goes on until the residual is small. CuPy cannot capture its own cuSPARSE and cuBLAS calls, so
the products are tensorplay_cupy.linalg's; the eager loop beside it is plain CuPy, which asks the
host after each turn. It needs a GPU, and `pip install 'tensorplay-cupy[cuda13,linalg]'`.
"""

import argparse
import sys

try:
    import cupy as cp
    from convergence import History, plot, seconds, table
    from cupyx.scipy import sparse

    from tensorplay_cupy import CUDAGraph, DriverUnavailable, graph, linalg
except ImportError as error:
    sys.exit(f"{error}: pip install 'tensorplay-cupy[cuda13,linalg]'")


def laplacian(n):
    """The five-point Laplacian of an `n × n` grid, `n² × n²`."""
    beside, on = cp.full(n - 1, -1.0), cp.full(n, 2.0)
    one = sparse.diags([beside, on, beside], [-1, 0, 1], format="csr")
    unit = sparse.identity(n, format="csr")
    return (sparse.kron(unit, one) + sparse.kron(one, unit)).tocsr()


class System:
    """`matrix @ x = b`, on buffers that do not move."""

    def __init__(self, matrix, b, tolerance, most):
        self.matrix, self.b = matrix, b
        self.x, self.r, self.p, self.q = (cp.zeros_like(b) for _ in range(4))
        self.rr, self.alpha, self.beta = (cp.zeros(()) for _ in range(3))
        self.history = History(tolerance * float(cp.linalg.norm(b)), most)

    def multiply(self):
        linalg.sparse_matmul(self.matrix, self.p, out=self.q)

    def dot(self, one, other):
        return linalg.dot(one, other)

    def begin(self):
        self.x.fill(0)
        cp.copyto(self.r, self.b)
        cp.copyto(self.p, self.b)
        cp.copyto(self.rr, self.dot(self.r, self.r))
        self.history.begin()

    def turn(self):
        self.multiply()
        cp.divide(self.rr, self.dot(self.p, self.q), out=self.alpha)
        self.x += self.alpha * self.p
        self.r -= self.alpha * self.q
        now = self.dot(self.r, self.r)
        cp.divide(now, self.rr, out=self.beta)
        cp.copyto(self.rr, now)
        self.p *= self.beta
        self.p += self.r
        self.history.keep(cp.sqrt(now))

    def run_eagerly(self):
        self.begin()
        while bool(self.history.on[0]):
            self.turn()

    def capture(self):
        self.begin()
        self.turn()  # Sets up the libraries and compiles the kernels.
        with graph(CUDAGraph()) as g:
            self.begin()
            with g.while_loop(self.history.on):
                self.turn()
        return g

    def relative_residual(self):
        return float(cp.linalg.norm(self.b - self.matrix @ self.x) / cp.linalg.norm(self.b))


class Plain(System):
    """The same with CuPy's own products, which only eager code can call."""

    def multiply(self):
        cp.copyto(self.q, self.matrix @ self.p)

    def dot(self, one, other):
        return cp.dot(one, other)


def solve(n, tolerance, most):
    """Runs both ways; returns turns, seconds of each, the residuals, and what the answers are."""
    matrix, b = laplacian(n), cp.random.default_rng(0).standard_normal(n * n)
    ours, plain = (kind(matrix, b, tolerance, most) for kind in (System, Plain))
    g = ours.capture()
    replayed = seconds(g.replay)
    turns, residuals, good = (
        int(ours.history.count[0]),
        ours.history.read(),
        ours.relative_residual(),
    )
    plain.run_eagerly()
    eagerly = seconds(plain.run_eagerly, repeats=1)
    beside = ours.x.copy()
    ours.run_eagerly()
    same = bool((ours.x == beside).all())
    g.close()
    return turns, eagerly, replayed, residuals, (good, plain.relative_residual(), same)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 32, 64, 128, 256, 512])
    parser.add_argument("--tolerance", type=float, default=1e-8)
    parser.add_argument("--most", type=int, default=5000, help="turns at the most")
    parser.add_argument("--plot", default="cupy_cg.png", help="where the residuals are drawn")
    options = parser.parse_args()

    try:
        CUDAGraph()
    except DriverUnavailable as error:
        sys.exit(str(error))
    rows, curves, every = [], {}, True
    for n in options.sizes:
        turns, eagerly, replayed, residuals, answers = solve(n, options.tolerance, options.most)
        rows.append((f"{n * n} unknowns", turns, eagerly, replayed))
        curves[f"{n * n} unknowns"] = residuals
        good, plain, same = answers
        solved = turns < options.most and max(good, plain) < 10 * options.tolerance
        every = every and same and (solved or turns == options.most)
    table("system", rows)
    print(f"\nsolved, and replay equal to eager bit for bit: {'yes' if every else 'no'}")
    plot(options.plot, "Conjugate gradients, decided on the device", curves)
    return 0 if every else 1


if __name__ == "__main__":
    sys.exit(main())
