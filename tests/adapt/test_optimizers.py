"""Every optimizer that captures equals itself run eagerly, bit for bit, over 50 steps."""

from __future__ import annotations

import pytest
from torch import optim

SGD = {
    "plain": {"lr": 0.05},
    "momentum": {"lr": 0.05, "momentum": 0.9},
    "nesterov": {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "dampening": {"lr": 0.05, "momentum": 0.9, "dampening": 0.3},
    "maximize": {"lr": 0.001, "momentum": 0.5, "maximize": True, "weight_decay": 0.1},
}
WAYS = {"single": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
CPU = {
    **{
        f"SGD {name} {way}": (optim.SGD, options | which)
        for name, options in SGD.items()
        for way, which in WAYS.items()
    },
    "Adam": (optim.Adam, {"fused": True, "weight_decay": 0.1, "amsgrad": True}),
    "AdamW": (optim.AdamW, {"fused": True, "lr": 0.01}),
    "AdamW capturable": (optim.AdamW, {"fused": True, "capturable": True, "lr": 0.01}),
    "Adagrad": (
        optim.Adagrad,
        {"fused": True, "lr_decay": 0.1, "initial_accumulator_value": 0.5, "weight_decay": 0.1},
    ),
    **{
        f"Adadelta {way}": (optim.Adadelta, {"weight_decay": 0.1, **WAYS[way]})
        for way in ("single", "foreach")
    },
    **{
        f"RMSprop {way}": (
            optim.RMSprop,
            {"lr": 0.005, "momentum": 0.5, "centered": True, "weight_decay": 0.1, **WAYS[way]},
        )
        for way in ("single", "foreach")
    },
    **{f"Rprop {way}": (optim.Rprop, {"lr": 0.005, **WAYS[way]}) for way in ("single", "foreach")},
}


@pytest.mark.parametrize("name", CPU)
def test_on_the_cpu(twins, name):
    kind, options = CPU[name]
    twins(lambda parameters: kind(parameters, **options), groups=True).run()
