"""An option of an optimizer that becomes one of another kind, or turns its sign, is named."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import optim

from tensorplay_core.errors import StaleGraph

from .optimizers import changing

KINDS = {
    "number": 0.25,
    "int": 3,
    "tensor": torch.tensor(0.25),
    "none": None,
    "bool": True,
    "str": "0.25",
    "numbers": (0.25, 0.5),
    "more numbers": (0.25, 0.5, 0.75),
    "tensors": (torch.tensor(0.25), torch.tensor(0.5)),
    "both": (0.25, torch.tensor(0.5)),
    "list": [0.25, None],
    "dict": {"rate": 0.25},
    "nothing": (),
}


class Optioned(optim.SGD):
    """Reads an option of any kind."""

    def step(self, closure=None):
        for group in self.param_groups:
            group.get("option")
        return super().step(closure)


@pytest.mark.parametrize("was", KINDS)
def test_a_change_from_one_kind_of_option_to_another_is_named(twins, was):
    pair = twins(lambda p: Optioned([{"params": list(p), "option": KINDS[was]}], lr=0.05))
    pair.run(1)
    (group,) = pair.ours.optimizer.param_groups
    for now, value in KINDS.items():
        if now == was:
            continue
        group["option"] = value
        with pytest.raises(StaleGraph, match=r"param_groups\[0\]\['option'\]"):
            pair.step(*pair.batch())
    del group["option"]
    with pytest.raises(StaleGraph, match=r"param_groups\[0\]\['option'\](\[0\])? is gone"):
        pair.step(*pair.batch())
    group["option"] = KINDS[was]
    pair.run(2)


@pytest.mark.parametrize("on_change", ["raise", "recapture"])
@pytest.mark.parametrize("kinds", [(torch.tensor(0.1), 0.0), (0.1, torch.tensor(0.0))])
def test_a_learning_rate_that_becomes_a_tensor_or_a_number(twins, kinds, on_change):
    was, now = kinds
    pair = twins(
        lambda p: optim.AdamW(p, lr=copy.deepcopy(was), fused=True),
        captured={"on_change": on_change},
    )
    pair.run(2)
    if on_change == "recapture":
        pair.run(3, change=changing("lr", now))
        assert pair.step.captures == 2
        return
    pair.ours.optimizer.param_groups[0]["lr"] = now
    said = (
        "another tensor, was a number" if isinstance(now, torch.Tensor) else r"0\.0, was a tensor"
    )
    with pytest.raises(StaleGraph, match=rf"param_groups\[0\]\['lr'\] is {said}"):
        pair.step(*pair.batch())


@pytest.mark.skipif(not hasattr(optim, "Muon"), reason="this torch has no Muon")
def test_an_int_that_chooses_what_is_done_becomes_a_number(twins):
    def muon(parameters):
        return optim.Muon([one for one in parameters if one.ndim == 2], lr=0.1)

    pair = twins(muon)
    pair.run(2)
    pair.ours.optimizer.param_groups[0]["ns_steps"] = 0.5
    with pytest.raises(StaleGraph, match=r"\['ns_steps'\] is 0\.5, was 5"):
        pair.step(*pair.batch())


@pytest.mark.parametrize("value", [-0.1, float("nan"), 0.0])
def test_a_momentum_that_turns_is_captured_anew(twins, value):
    def rmsprop(parameters):
        return optim.RMSprop(parameters, lr=0.01, momentum=0.9)

    pair = twins(rmsprop)
    pair.run(2)
    pair.ours.optimizer.param_groups[0]["momentum"] = value
    with pytest.raises(StaleGraph, match=r"param_groups\[0\]\['momentum'\] is"):
        pair.step(*pair.batch())
    other = twins(rmsprop, captured={"on_change": "recapture"})
    other.run(3)
    for training in (other.eager, other.ours):
        training.optimizer.param_groups[0]["momentum"] = value
    x, y = other.batch()
    for _ in range(3):
        assert torch.equal(other.step(x, y), other.eager.step(x, y))
    assert other.step.captures == 2
    for one, two in zip(other.ours.model.parameters(), other.eager.model.parameters(), strict=True):
        assert torch.equal(one, two)
