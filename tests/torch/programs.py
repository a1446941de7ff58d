"""Programs to record on the CPU, and how what a replay computed is compared with eager code's."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.testing._internal.two_tensor import TwoTensor


def weight(*shape: int) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.randn(*shape))


def same(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return (
        ours.shape == theirs.shape
        and ours.dtype == theirs.dtype
        and ours.stride() == theirs.stride()
        and torch.equal(bits(ours), bits(theirs))
    )


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


class Programs:
    """Functions of one tensor of shape (4, 6); what they write is made anew at each call."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.w = weight(6, 6)
        self.lstm = torch.nn.LSTM(6, 5, num_layers=2, dropout=0.4)
        self.attention = torch.nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
        self.conv = torch.nn.Conv1d(4, 4, 3, padding=1)

    def arithmetic(self, x):
        return (x @ self.w).tanh().softmax(-1).cumsum(0)

    def views(self, x):
        y = x * 2
        return y.t()[1:].unsqueeze(0), y.view(2, 12)[:, ::3], y.unfold(1, 2, 2), y.expand(3, 4, 6)

    def writes(self, x):
        y = x.clone()
        y.mul_(3).add_(x, alpha=0.5)
        y[1:3].copy_(x[:2])
        y.t()[0].zero_()
        y.diagonal().fill_(2.5)
        return y

    def reshapes_in_place(self, x):
        y = x + 1
        y.t_()
        z = y * 2
        y.unsqueeze_(0)
        return y, z, y.squeeze_(0) + z

    def grows(self, x):
        x = x.detach()
        out = torch.empty(0)
        torch.add(x, x, out=out)
        values, indices = torch.empty(0), torch.empty(0, dtype=torch.long)
        torch.max(x, 1, out=(values, indices))
        y = torch.zeros(2)
        y.resize_(4, 6)
        return out, values, indices, y.copy_(x)

    def constants(self, x):
        offset = torch.tensor([1.0, 2.0])
        before = offset * x[:2, :2]
        offset.add_(x[0, 0])
        return before, offset, torch.tensor(3.0) * x

    def masks(self, x):
        y = x.clone()
        y[y > 0] = 0.5
        return y, torch.where(x > 0, x, 1), x.masked_fill(x < 0, 7)

    def draws(self, x):
        noise = torch.empty(3).uniform_(-1, 1)
        return F.dropout(x), torch.rand_like(x), noise, torch.randperm(7), x.sigmoid().bernoulli()

    def several(self, x):
        return torch.std_mean(x, 0), x.split(2), torch.linalg.svd(x), x.topk(2)

    def gradients(self, x):
        loss = F.layer_norm(x @ self.w, (6,)).square().mean()
        return loss, torch.autograd.grad(loss, (x, self.w), create_graph=True)

    def second_order(self, x):
        (first,) = torch.autograd.grad((x @ self.w).sin().sum(), self.w, create_graph=True)
        return torch.autograd.grad(first.square().sum(), self.w)

    def recurrent(self, x):
        y, (h, c) = self.lstm(x.unsqueeze(1))
        return y, torch.autograd.grad(y.sum() + h.sum() + c.sum(), list(self.lstm.parameters()))

    def attends(self, x):
        y = self.attention(x.unsqueeze(0))
        return y, torch.autograd.grad(y.sum(), self.attention.linear1.weight)

    def convolves(self, x):
        y = self.conv(x.unsqueeze(0))
        return y, torch.autograd.grad(y.square().sum(), self.conv.weight)

    def channels_last(self, x):
        y = x.reshape(2, 3, 2, 2).contiguous(memory_format=torch.channels_last)
        return F.interpolate(F.conv2d(y, self.w[:, :3, None, None]), scale_factor=2), y.relu()

    def transforms(self, x):
        def norm(row):
            return (row @ self.w).square().sum()

        return (
            torch.vmap(norm)(x),
            torch.func.jvp(torch.tanh, (x,), (x,)),
            torch.func.grad(norm)(x[0]),
        )

    def half(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.linear(x, self.w), F.layer_norm(x.bfloat16(), (6,))

    def without_grad(self, x):
        with torch.no_grad():
            return self.lstm(x.unsqueeze(1))[0], x @ self.w

    def inference(self, x):
        with torch.inference_mode():
            y = F.linear(x, self.w).reshape(-1)
            return y.add_(1), y * 2

    def subclass(self, x):
        y = TwoTensor(x, x + 1) * 2
        return y.a, y.b

    def complex(self, x):
        z = torch.view_as_complex(x.reshape(4, 3, 2))
        return (z @ z.conj().t()).abs(), torch.fft.rfft(x), z.imag


NAMES = [name for name in vars(Programs) if not name.startswith("_")]


def flat(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [leaf for one in value for leaf in flat(one)]
