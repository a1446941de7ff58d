"""Captured training steps for PyTorch: the public door of `tensorplay-adapt`."""

__all__ = ["__version__"]

__version__ = "0.1.0"
