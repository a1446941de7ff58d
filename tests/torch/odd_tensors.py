"""One tensor of each kind that a check may meet."""

from __future__ import annotations

import torch
from torch import nn

MADE = {
    "plain": lambda: torch.zeros(2, 3),
    "another plain": lambda: torch.ones(2, 3),
    "parameter": lambda: nn.Parameter(torch.zeros(2, 3)),
    "with history": lambda: torch.zeros(2, 3, requires_grad=True) * 2,
    "inference": lambda: _inference(torch.zeros(2, 3)),
    "transposed": lambda: torch.zeros(3, 2).t(),
    "with gaps": lambda: torch.zeros(2, 6)[:, ::2],
    "double": lambda: torch.zeros(2, 3, dtype=torch.float64),
    "one row": lambda: torch.zeros(1, 3),
    "one row of others": lambda: torch.zeros(4, 3)[:1].as_strided((1, 3), (7, 1)),
    "empty": lambda: torch.zeros(0, 3),
    "empty of others": lambda: torch.zeros(3, 0).t(),
    "number": lambda: torch.tensor(1.0),
    "complex": lambda: torch.zeros(2, 3, dtype=torch.complex64),
    "conjugated": lambda: torch.zeros(2, 3, dtype=torch.complex64).conj(),
    "negated": lambda: torch.zeros(2, 3, dtype=torch.complex64).conj().imag,
    "zero": lambda: torch._efficientzerotensor((2, 3)),
    "meta": lambda: torch.zeros(2, 3, device="meta"),
    "sparse": lambda: torch.zeros(2, 3).to_sparse(),
    "nested": lambda: torch.nested.nested_tensor([torch.zeros(3), torch.zeros(3)]),
    "quantized": lambda: torch.quantize_per_tensor(torch.zeros(2, 3), 0.1, 0, torch.qint8),
    "subclass": lambda: torch.zeros(2, 3).as_subclass(_Named),
    "an array": lambda: [[0.0] * 3] * 2,
    "none": lambda: None,
}  # fmt: skip


class _Named(torch.Tensor):
    pass


def _inference(tensor: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return tensor.clone()
