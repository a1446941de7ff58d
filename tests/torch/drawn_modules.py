"""Modules of drawn layers, ways to graph them, and when what they return is equal."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import nn

from .twins import tensors

WIDTH = 4
BATCH = 3


class Tied(nn.Module):
    """Two uses of one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(self.first(x).tanh())


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 2, 3, padding=1)

    def forward(self, x):
        return self.conv(x.unsqueeze(1)).sum(1)


class Views(nn.Module):
    """Slices, transposes and a write through a view."""

    def forward(self, x):
        y = x.t().contiguous()
        y[0].mul_(0.5)
        y[1:].add_(y[:-1].clone())
        return (y.t() + x.reshape(-1)[: x.numel()].view(x.shape)).contiguous()


class Average(nn.Module):
    """A buffer moved in place at each forward, as exponential averages are."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(x.mean(0), 0.25)
        return x - self.mean


class Noise(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x) if self.training else x


LAYERS = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "conv": Conv,
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "dropout": lambda: nn.Dropout(0.5),
    "relu in place": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)),
    "gelu": nn.GELU,
    "tied": Tied,
    "views": Views,
    "average": Average,
    "noise": Noise,
    "frozen": lambda: nn.Linear(WIDTH, WIDTH).requires_grad_(False),
}


class Model(nn.Module):
    """Layers in a row, between an entry and an exit.

    Args:
        layers: Names in LAYERS.
        entry: "tensor", "tokens", or "pair": what the inputs are.
        exit: "tensor", "two" or "dict": what the outputs are.
    """

    def __init__(self, layers, entry, exit):
        super().__init__()
        self.entry, self.exit = entry, exit
        self.embed = nn.Embedding(5, WIDTH) if entry == "tokens" else None
        self.layers = nn.ModuleList(LAYERS[name]() for name in layers)
        self.head = nn.Linear(WIDTH, 2) if exit != "tensor" else None

    def forward(self, *inputs):
        if self.entry == "tokens":
            x = self.embed(inputs[0])
        elif self.entry == "pair":
            x = inputs[0] * inputs[1]["scale"]
        else:
            x = inputs[0] * 2
        for layer in self.layers:
            x = layer(x)
        if self.exit == "two":
            return x, self.head(x)
        if self.exit == "dict":
            return {"head": self.head(x), "body": x * 2, "best": x.argmax(1), "none": None}
        return x


def arguments(entry, requires_grad, seed, device):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(BATCH, WIDTH, generator=generator).to(device)
    if entry == "tokens":
        return (torch.randint(5, (BATCH,), generator=generator).to(device),)
    x.requires_grad_(requires_grad)
    if entry == "pair":
        scale = torch.randn(WIDTH, generator=generator).to(device)
        return x, {"scale": scale.requires_grad_(requires_grad)}
    return (x,)


models = st.fixed_dictionaries(
    {
        "layers": st.lists(st.sampled_from(sorted(LAYERS)), max_size=4),
        "entry": st.sampled_from(["tensor", "tokens", "pair"]),
        "exit": st.sampled_from(["tensor", "two", "dict"]),
        "requires_grad": st.booleans(),
    }
)
ways = st.fixed_dictionaries(
    {
        "slots": st.integers(1, 3),
        "param_grads": st.sampled_from(["autograd", "in_graph"]),
        "retain_graph": st.booleans(),
        "num_warmup_iters": st.integers(1, 2),
    }
)


def differentiable(value):
    return [one for one in tensors(value) if one.requires_grad]


def weighted(tensor):
    weights = torch.linspace(-1, 2, tensor.numel(), device=tensor.device)
    return (tensor * weights.view(tensor.shape)).sum()


def compare(expected, result):
    """Equal bit for bit; NaN is equal to itself."""
    assert type(expected) is type(result) or isinstance(expected, nn.Parameter)
    if isinstance(expected, torch.Tensor):
        assert expected.dtype == result.dtype
        assert expected.requires_grad == result.requires_grad or not torch.is_grad_enabled()
        torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
    elif isinstance(expected, dict):
        assert expected.keys() == result.keys()
        for key in expected:
            compare(expected[key], result[key])
    elif isinstance(expected, list | tuple):
        for one, other in zip(expected, result, strict=True):
            compare(one, other)
    else:
        assert expected == result
