"""Torch's own operator database in other types: equal bit for bit, or refused by name."""

from __future__ import annotations

import pytest
import torch

from .operators import faults, swept


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.complex64, torch.int64, torch.bool]
)
def test_in_any_type(record, database, dtype):
    assert faults(swept(record, database, dtype)) == {}
