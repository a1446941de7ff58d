"""Sweeps through torch's own operator database: recorded, replayed, and compared with eager."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from tensorplay_core import OperationRefused
from tensorplay_torch.resources.arena import poison

SAMPLES = 2
ROUNDS = 2
UNDEFINED = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)
"""Their results hold whatever the memory held."""
OTHER_FORMULA = frozenset({"masked_fill", "prod"})
"""Autograd differentiates these by another formula as soon as a dispatch mode is on."""


def layouts(tensor: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    """The same values in other orders of memory."""

    def permuted() -> torch.Tensor:
        order = [*range(1, tensor.dim()), 0]
        back = [order.index(place) for place in range(tensor.dim())]
        return tensor.permute(order).clone(memory_format=torch.contiguous_format).permute(back)

    def channels_last() -> torch.Tensor:
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        return tensor.clone(memory_format=formats.get(tensor.dim(), torch.contiguous_format))

    return {
        "plain": tensor.clone,
        "channels last": channels_last,
        "permuted": permuted if tensor.dim() > 1 else tensor.clone,
        "spaced": lambda: torch.stack([tensor, tensor], -1)[..., 0],
    }


class Sweep:
    """One operator's samples, each captured from poisoned inputs and replayed on fresh ones."""

    def __init__(self, record: Any, op: Any, dtype: torch.dtype, layout: str) -> None:
        self.record, self.op, self.dtype, self.layout = record, op, dtype, layout
        self.name = f"{op.name}.{op.variant_test_name}".rstrip(".")
        self.grad = (
            op.supports_autograd
            and (dtype.is_floating_point or dtype.is_complex)
            and dtype in op.supported_backward_dtypes("cpu")
        )

    def outcomes(self) -> Iterator[str]:
        for place, drawn in enumerate(zip(*map(self.samples, range(ROUNDS + 1)), strict=True)):
            samples = tuple(sample for sample, _ in drawn)
            if not any(new for _, new in drawn):  # The plain sweep has these already.
                continue
            yield self.outcome(self.op, samples)
            if place == 0 and self.op.inplace_variant and not samples[0].broadcasts_input:
                yield self.outcome(self.in_place, samples)

    def in_place(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.op.inplace_variant(x.clone(), *args, **kwargs)

    def samples(self, seed: int) -> list[tuple[Any, bool]]:
        """Samples as they are laid out here, and whether that is not as in the plain sweep."""
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        # The method of this name inspects the stack for the name of a test, which takes long.
        found = self.op.sample_inputs_func(self.op, "cpu", self.dtype, self.grad)
        pairs = []
        for sample in itertools.islice(found, SAMPLES):
            plain = sample.transform(lambda value: self.laid_out(value, "plain"))
            ours = sample.transform(lambda value: self.laid_out(value, self.layout))
            new = self.layout == "plain" or memory_of(ours) != memory_of(plain)
            pairs.append((ours, new))
        return pairs

    def laid_out(self, value: Any, layout: str) -> Any:
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return value
        if not value.numel():
            return value
        # Strides that are given by hand reach what lies between elements.
        layout = "plain" if self.op.name.startswith("as_strided") else layout
        return layouts(value.detach())[layout]().requires_grad_(value.requires_grad)

    def outcome(self, function: Any, samples: tuple[Any, ...]) -> str:
        static, *fresh = samples
        if any(layouts_of(static) != layouts_of(other) for other in fresh):
            return "no two samples alike"
        # What is no tensor differs between samples too, and is a constant of the capture.
        eager = static.transform(own)
        for tensor in tensors_of(static):
            if tensor.layout == torch.strided:
                with torch.no_grad():
                    poison(tensor)
        try:
            captured = self.record(lambda: self.run(function, static))
        except OperationRefused as refusal:
            return f"refused {refusal.operation}"
        except Exception as error:
            return self.judged(function, fresh[0], error)
        sizes = [nbytes(tensor) for tensor in captured.result]
        for sample in (*fresh, fresh[0]):
            with torch.no_grad():
                for source, *targets in zip(*map(tensors_of, (sample, static, eager)), strict=True):
                    for target in targets:
                        target.copy_(source)
            torch.default_generator.manual_seed(7)
            captured.replay()
            drawn = torch.get_rng_state()
            torch.default_generator.manual_seed(7)
            try:
                expected = self.run(function, eager)
            except RuntimeError:
                return "wrong call"
            if not torch.equal(drawn, torch.get_rng_state()):
                return "DRAWS DIFFER"
            for ours, theirs in zip(captured.result, expected, strict=True):
                difference = self.difference(ours, theirs)
                if difference:
                    return difference
        return "equal" if sizes == list(map(nbytes, captured.result)) else "MEMORY GREW"

    def run(self, function: Any, sample: Any) -> list[torch.Tensor | None]:
        """Results, then gradients of the inputs."""
        inputs = [tensor for tensor in tensors_of(sample) if tensor.requires_grad]
        for tensor in inputs:
            tensor.grad = None
        results = list(tensors_in(function(sample.input, *sample.args, **sample.kwargs)))
        outputs = [one for one in results if one.requires_grad and one.layout == torch.strided]
        if outputs:
            torch.autograd.backward(outputs, [torch.full_like(one, 0.7) for one in outputs])
        return [*(one.detach() for one in results), *(tensor.grad for tensor in inputs)]

    def judged(self, function: Any, sample: Any, error: Exception) -> str:
        """Wrong calls fail in eager code too."""
        try:
            self.run(function, sample)
        except Exception as theirs:
            return "wrong call" if type(theirs) is type(error) else f"OTHER ERROR: {error!r}"
        return f"FAILS: {error!r}"

    def difference(self, ours: torch.Tensor | None, theirs: torch.Tensor | None) -> str:
        if ours is None or theirs is None:
            return "" if ours is theirs else "ONE IS NONE"
        if layout_of(ours) != layout_of(theirs):
            return f"LAYOUTS DIFFER: {layout_of(ours)} {layout_of(theirs)}"
        if self.op.name in UNDEFINED or torch.equal(bits(ours), bits(theirs)):
            return ""
        if self.op.name in OTHER_FORMULA and torch.allclose(ours, theirs, rtol=0.02):
            return "other formula"
        return "VALUES DIFFER"


def own(value: Any) -> Any:
    """The value in memory of its own, laid out alike."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.layout != torch.strided:
        return value.clone()
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    return made.copy_(value.detach()).requires_grad_(value.requires_grad)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_in(one)


def tensors_of(sample: Any) -> list[torch.Tensor]:
    return list(tensors_in((sample.input, sample.args, sample.kwargs)))


def layout_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.layout != torch.strided:
        return (tensor.layout, tensor.shape)
    # Steps over one element, or in a tensor without any, mean nothing.
    steps = [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
    return (tensor.dtype, tensor.shape, steps if tensor.numel() else None)


def layouts_of(sample: Any) -> list[tuple[Any, ...]]:
    return [layout_of(tensor) for tensor in tensors_of(sample)]


def memory_of(sample: Any) -> list[tuple[Any, ...]]:
    """How the tensors lie in memory, to the byte."""
    return [
        (tensor.shape, tensor.stride(), tensor.storage_offset(), nbytes(tensor))
        if tensor.layout == torch.strided
        else (tensor.layout, tensor.shape)
        for tensor in tensors_of(sample)
    ]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = (
        tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    )
    return plain.reshape(-1).view(torch.uint8) if plain.numel() else plain


def nbytes(tensor: torch.Tensor | None) -> int:
    return (
        0 if tensor is None or tensor.layout != torch.strided else tensor.untyped_storage().nbytes()
    )


def swept(record: Any, database: Any, dtype: torch.dtype, layout: str = "plain"):
    """Each operator's outcomes, by its name."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in database:
            if dtype in op.supported_dtypes("cpu"):
                sweep = Sweep(record, op, dtype, layout)
                found[sweep.name] = list(sweep.outcomes())
    return found


def faults(found: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: all_ for name, all_ in found.items() if any(one[0].isupper() for one in all_)}
