"""What the recorder of the CPU refuses, for the tests of it."""

from __future__ import annotations

import sys

import pytest
import torch

from tensorplay_core import OperationRefused


def x() -> torch.Tensor:
    return torch.randn(4, 4)


def refusal(record, function, *args) -> OperationRefused:
    """The refusal, which leaves nothing unsaid and names a line of the caller's module."""
    with pytest.raises(OperationRefused) as refused:
        record(function, *args)
    error = refused.value
    assert error.where in str(error)
    assert error.where.startswith(f"{sys._getframe(1).f_code.co_filename}:")
    assert all((error.doing, error.subject, error.met, error.remedy))
    return error
