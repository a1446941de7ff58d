"""What is to be equal one by one, for tests that compare many tensors at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch


def assert_all_equal(
    found: Iterable[torch.Tensor] | Mapping[str, torch.Tensor],
    expected: Iterable[torch.Tensor] | Mapping[str, torch.Tensor],
) -> None:
    """The same tensors in the same order or under the same names: as many, and not none of them."""
    if isinstance(found, Mapping) and isinstance(expected, Mapping):
        assert found.keys() == expected.keys()
        names, found = list(found), [found[name] for name in found]
        expected = [expected[name] for name in names]
    else:
        found, expected = list(found), list(expected)
        names = list(range(len(found)))
    assert len(found) == len(expected)
    assert found, "nothing was compared"
    for name, one, other in zip(names, found, expected, strict=True):
        assert torch.equal(one, other), f"{name}: {one} is not {other}"
