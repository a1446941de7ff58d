"""The optimizers that most tests take steps with."""

from __future__ import annotations

from torch import optim


def adamw(parameters):
    return optim.AdamW(parameters, lr=0.01, fused=True, capturable=True)


def sgd(parameters):
    return optim.SGD(parameters, lr=0.05, momentum=0.9)


OPTIMIZERS = {"AdamW": adamw, "SGD": sgd}


def changing(name, value):
    """What sets an entry of the first group before the third step."""

    def change(number, made):
        if number == 2:
            made.param_groups[0][name] = value

    return change
