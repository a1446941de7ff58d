"""What puts back the modes of a thread does in C++ what it does in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensorplay_torch.tracking.surroundings import Surroundings

from .built import BUILT, needs_parts

pytestmark = needs_parts

DTYPES = st.sampled_from([torch.bfloat16, torch.float16])
MODES = st.tuples(st.booleans(), st.booleans(), st.booleans(), DTYPES, DTYPES, st.booleans())


def modes() -> tuple[object, ...]:
    """In the order of ``MODES``."""
    kinds = ("cpu", "cuda")
    return (
        torch.is_grad_enabled(),
        *map(torch.is_autocast_enabled, kinds),
        *map(torch.get_autocast_dtype, kinds),
        torch.is_autocast_cache_enabled(),
    )


def put(modes: tuple[Any, ...]) -> None:
    grad, cpu, cuda, low, other, kept = modes
    torch.set_grad_enabled(grad)
    for kind, enabled, dtype in (("cpu", cpu, low), ("cuda", cuda, other)):
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)
    torch.set_autocast_cache_enabled(kept)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = modes()
    yield
    put(before)


@pytest.mark.parametrize("made", ["in C++", "in Python"])
@given(before=MODES, meanwhile=MODES)
def test_modes_are_put_back(made: str, before: tuple[Any, ...], meanwhile: tuple[Any, ...]) -> None:
    assert BUILT is not None
    make: Callable[[], Callable[[], None]] = BUILT.Around if made == "in C++" else Surroundings
    put(before)
    restore = make()
    assert modes() == before
    for _ in range(2):
        put(meanwhile)
        restore()
        assert modes() == before


@pytest.mark.parametrize("made", ["in C++", "in Python"])
@pytest.mark.parametrize("inside", [False, True])
def test_grad_mode_stays_where_inference_mode_is_another(made: str, *, inside: bool) -> None:
    assert BUILT is not None
    make: Callable[[], Callable[[], None]] = BUILT.Around if made == "in C++" else Surroundings
    block = torch.inference_mode()
    if not inside:
        block.__enter__()
    restore = make()
    if inside:
        block.__enter__()
    else:
        block.__exit__(None, None, None)
    torch.set_grad_enabled(not inside)
    restore()
    assert torch.is_grad_enabled() is not inside
    if inside:
        block.__exit__(None, None, None)


def test_copies_of_parameters_are_dropped_on_either_side() -> None:
    assert BUILT is not None
    weight, x = torch.ones(2, 2, requires_grad=True), torch.ones(2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for steps in (lambda: BUILT.Around(), lambda: BUILT.Around()()):
            first = torch.mm(x, weight).grad_fn
            assert torch.mm(x, weight).grad_fn is not None
            steps()
            second = torch.mm(x, weight).grad_fn
            assert first is not None
            assert second is not None
            # A copy is a node of its own between the product and the parameter.
            copies = [node.next_functions[1][0] for node in (first, second)]
            assert copies[0] is not copies[1]


def test_other_arguments_are_refused(parts: Any) -> None:
    with pytest.raises(TypeError):
        parts.Around(1)
    with pytest.raises(TypeError):
        parts.Around()(1)
