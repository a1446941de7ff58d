"""Captures on a GPU, and the memory that is held there, for the tests of the torch driver."""

from __future__ import annotations

import gc

import torch

import tensorplay_torch as tp


def record(work, **options):
    g = tp.CUDAGraph()
    with tp.graph(g, **options):
        result = work()
    return g, result


def held():
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()
