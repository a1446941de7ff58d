"""Numbers in captured nodes are told from addresses, which mean nothing and differ at random."""

from __future__ import annotations

import itertools
import math
import random
import struct

import pytest
import torch

import tensorplay_torch as tp
from tensorplay_adapt.hyperparameters import Hyperparameters, values_of


class Node:
    """A kernel node with a learning rate and a word that nobody understands."""

    name, readable, constants = "kernel", True, b""

    def __init__(self, lr: float, word: bytes) -> None:
        self.data = struct.pack("<d", lr) + word + bytes(4)

    def rewrite(self, graph: object, data: bytes) -> None:
        self.data = data


def learned(word):
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=0.05)

    def step():
        lr = optimizer.param_groups[0]["lr"]
        return [Node(lr, word(lr))]

    return Hyperparameters(optimizer, tp.CUDAGraph(), step(), values_of(optimizer), step)


@pytest.mark.parametrize("seed", range(20))
def test_words_that_differ_by_themselves_freeze_nothing(seed):
    source = random.Random(seed)
    found = learned(lambda lr: struct.pack("<I", source.randrange(8)))
    assert (0, "lr", None) not in found.frozen


def test_words_that_come_back_now_and_then_freeze_nothing():
    again = itertools.cycle([1, 2, 2, 1, 1, 3])
    found = learned(lambda lr: struct.pack("<I", next(again)))
    assert (0, "lr", None) not in found.frozen


def test_a_number_that_is_not_understood_freezes_what_it_comes_from():
    found = learned(lambda lr: struct.pack("<f", math.cos(1000 * lr)))
    assert (0, "lr", None) in found.frozen
