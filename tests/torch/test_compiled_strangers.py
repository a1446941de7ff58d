"""The compiled search for operands finds those that Python finds."""

from __future__ import annotations

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensorplay_torch.resources.signatures import PLAIN
from tensorplay_torch.resources.storages import key_of
from tensorplay_torch.tracking.operands import _strangers
from tensorplay_torch.tracking.operations import tensors_in

from .built import BUILT, needs_parts
from .odd_tensors import MADE

pytestmark = needs_parts


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor")
@given(
    st.lists(st.sampled_from([*sorted(MADE), "leaf", "nested list", "number 3"]), max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_strangers_are_those_that_python_finds(names, known):
    """But for what requires grad and is no leaf, to which nothing is bound; and all subclasses."""
    assert BUILT is not None
    values = [_value(name) for name in names]
    storages = {}
    for value, is_known in zip(values, known, strict=False):
        for tensor in tensors_in([value]) if is_known else ():
            with contextlib.suppress(NotImplementedError):
                storages[key_of(tensor)] = is_known
    found_by_python = list(map(id, _strangers(values, storages)))
    wanted = [
        one
        for one in tensors_in(values)
        if type(one) not in PLAIN
        or (
            id(one) in found_by_python
            and (one.is_leaf or not one.requires_grad or key_of(one) not in storages)
        )
    ]
    found = BUILT.strangers(values, storages)
    assert list(map(id, found)) == list(map(id, wanted))


def _value(name):
    if name == "leaf":
        return torch.zeros(2, requires_grad=True)
    if name == "nested list":
        return [torch.zeros(2), (torch.ones(1), None), 1]
    return 3 if name == "number 3" else MADE[name]()


def test_strangers_in_lists_that_change_or_hold_themselves(parts):
    class Odd:
        @property
        def __class__(self):
            held.clear()
            return int

    held = [Odd(), *(object() for _ in range(1000))]
    assert len(parts.strangers(held, {})) == 0
    held = []
    held.append(held)
    with pytest.raises(RecursionError):
        parts.strangers(held, {})


def test_what_only_says_that_it_is_a_tensor_is_none(parts):
    class Feigned:
        __class__ = torch.Tensor

    assert len(parts.strangers([Feigned()], {})) == 0
    for make in (parts.Unmoved, parts.Forms):
        with pytest.raises(TypeError):
            make([Feigned()])


@pytest.mark.parametrize("arguments", [(), ([],), ([], []), ([], {}, 1)])
def test_strangers_of_other_arguments_are_refused(parts, arguments):
    with pytest.raises(TypeError):
        parts.strangers(*arguments)
