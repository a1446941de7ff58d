"""Linear algebra that can be captured: dense and sparse products, triangular and Cholesky solves.

CuPy refuses cuBLAS, cuSPARSE and cuSOLVER inside a capture. These functions call the same ones
through nvmath-python (``pip install 'tensorplay-cupy[linalg]'``), on handles of their own, with
work space from CuPy's current allocator: inside a capture the graph's. They are the same outside,
where a first call sets the library up, so that a replay gives the bytes of the eager call.
"""

from __future__ import annotations

from .products import dot, gemv, matmul
from .solves import cho_solve, cholesky, solve_triangular
from .sparse import sparse_matmul

__all__ = [
    "cho_solve",
    "cholesky",
    "dot",
    "gemv",
    "matmul",
    "solve_triangular",
    "sparse_matmul",
]
