"""Graphs, pools and conditionals for CuPy: the public door of `tensorplay-cupy`."""

__all__ = ["__version__"]

__version__ = "0.1.0"
