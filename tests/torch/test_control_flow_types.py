"""What a capture would cast, or run on memory that holds no value yet, is refused by name."""

from __future__ import annotations

import pytest
import torch

import tensorplay_torch as tp


def test_branches_of_another_dtype_are_refused() -> None:
    flag, x = torch.tensor(True), torch.ones(2)
    with (
        pytest.raises(tp.SignatureMismatch) as caught,
        tp.graph(tp.CUDAGraph(device="cpu")),
    ):
        tp.cond(flag, lambda a: a.int(), lambda a: a / 2, x)
    assert any("dtype" in line for line in caught.value.differences)


@pytest.mark.parametrize("name", ["apply_", "map_", "map2_"])
def test_functions_of_python_over_elements_are_refused(name: str) -> None:
    x, others = torch.ones(2), {"apply_": 0, "map_": 1, "map2_": 2}[name]
    with (
        pytest.raises(tp.OperationRefused, match=name),
        tp.graph(tp.CUDAGraph(device="cpu")),
    ):
        getattr(x, name)(*[torch.ones(2)] * others, lambda *values: 5.0)
    assert x.tolist() == [1.0, 1.0]
