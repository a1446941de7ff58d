"""The torch driver asks of core's CUDA driver, beside its hooks, what that driver offers."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tensorplay_core.drivers.cuda import staging
from tensorplay_core.drivers.cuda.conditional import Conditionals
from tensorplay_torch.resources.bases import CudaDriver

ASKED = [
    name for name, what in vars(CudaDriver).items() if inspect.isfunction(what) and name[0] != "_"
]


def _names(function: Any) -> tuple[list[str], bool]:
    parameters = inspect.signature(function).parameters.values()
    named = [one.name for one in parameters if one.kind != one.VAR_KEYWORD and one.name != "self"]
    return named, any(one.kind == one.VAR_KEYWORD for one in parameters)


@pytest.mark.parametrize("name", ASKED)
def test_the_cuda_driver_takes_what_torch_gives(name: str) -> None:
    asked, _ = _names(vars(CudaDriver)[name])
    offered, open_ended = _names(getattr(Conditionals, name))
    if open_ended:
        more, _ = _names(getattr(staging, name))
        offered = [*offered, *more]
    assert set(asked) <= set(offered)
