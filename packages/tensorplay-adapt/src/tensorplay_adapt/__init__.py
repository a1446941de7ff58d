"""A whole training step of a PyTorch model, captured once and taken by one launch.

The public door of ``tensorplay-adapt``.
"""

from __future__ import annotations

from .recipe import GradientTransform, TensorLoss
from .report import Report
from .snapshot import Snapshot
from .step import CudaGraphAdaptationStep
from .until import Until
from .verify import Difference, Verification

__version__ = "0.1.0"

__all__ = [
    "CudaGraphAdaptationStep",
    "TensorLoss",
    "GradientTransform",
    # what its methods return
    "Until",
    "Snapshot",
    "Verification",
    "Difference",
    "Report",
    # about
    "__version__",
]
