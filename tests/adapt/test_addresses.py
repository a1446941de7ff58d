"""Numbers in captured nodes are told from addresses, which mean nothing and differ at random."""

from __future__ import annotations

import itertools
import math
import random
import struct

import pytest
import torch

import tensorplay_torch as tp
from tensorplay_adapt import formulas
from tensorplay_adapt.hyperparameters import Hyperparameters, values_of
from tensorplay_core.errors import ArgumentError


class Node:
    """A kernel node with a learning rate and a word that nobody understands."""

    name, readable, constants = "kernel", True, b""

    def __init__(self, lr: float, word: bytes) -> None:
        self.data = struct.pack("<d", lr) + word + bytes(4)

    def rewrite(self, graph: object, data: bytes) -> None:
        self.data = data


class PackedNode(Node):
    """One whose launch packed its arguments, as cuBLAS's do: it cannot be rewritten."""

    def rewrite(self, graph: object, data: bytes) -> None:
        raise ArgumentError(doing="rewriting", subject="a node", met="packed", remedy="None.")


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


def test_a_node_that_cannot_be_changed_freezes_what_stands_in_it_and_nothing_else():
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=0.05, momentum=0.9, weight_decay=0.1)

    def step():
        group = optimizer.param_groups[0]
        packed = PackedNode(group["momentum"], bytes(4))
        return [Node(group["lr"], bytes(4)), packed, Node(group["weight_decay"], bytes(4))]

    graph = tp.CUDAGraph()
    found = Hyperparameters(optimizer, graph, nodes := step(), values_of(optimizer), step)
    assert (0, "momentum", None) in found.frozen
    assert found.frozen.isdisjoint({(0, "lr", None), (0, "weight_decay", None)})
    found.write({(0, "lr", None): 0.25, (0, "weight_decay", None): 0.5})
    assert [struct.unpack_from("<d", node.data)[0] for node in nodes] == [0.25, 0.9, 0.5]


@pytest.mark.parametrize(
    ("pairs", "understood"),
    [
        ([(0, 0), (0xEFF49020, 0x7F61), (0xEFF49020, 0x7F61)], True),
        ([(0x2F0AC2B5, 0x55D0), (0x2F0AC2B8, 0x55D0), (0xFFFF0010, 0x55D0)], True),
        ([(1, 0x7FFE), (1, 0x7FFE), (1, 0)], False),
        ([(0x3D4CCCCD, 0), (0x3D2CCCCD, 0), (0x3D0CCCCD, 0)], False),
        ([(0x3D4CCCCD, 0x7F61), (0x3D2CCCCD, 0x7F61), (0x3D0CCCCD, 0x7F61)], False),
        ([(0x9999999A, 0x3FA99999), (0, 0), (0x33333333, 0x3FB33333)], False),
    ],
    ids=["none or one", "several", "a number above", "a float", "beside an int", "a double"],
)
def test_addresses_are_known_by_their_looks(pairs, understood):
    trials = [({}, [bytes(8) + struct.pack("<II", *pair)]) for pair in pairs]
    places, unknown = formulas.explain([], trials)
    assert not places
    assert (not unknown) is understood
