"""An eager module and its graphed copy, and what is compared of them."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch

import tensorplay_torch as tp


class Twins:
    """An eager module (or function of modules) and a graphed one with equal parameters.

    Args:
        module: The eager one.
        args: Of the sample call; on the device where both are.
        options: For `make_graphed_callables`.
    """

    def __init__(self, module: torch.nn.Module, *args: Any, **options: Any) -> None:
        self.eager = module
        self.device = next((t.device for t in tensors(args)), torch.device("cpu"))
        self.graphed = tp.make_graphed_callables(copy.deepcopy(module), args, **options)

    @property
    def counts(self):
        return self.graphed.forward.counts

    def call(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Calls both from one state of the random generators; results and states come out equal."""
        state = random_state(self.device)
        theirs = copied(args), copied(kwargs)
        expected = self.eager(*args, **kwargs)
        after = random_state(self.device)
        set_random_state(state)
        result = self.graphed(*theirs[0], **theirs[1])
        assert_equal(result, expected)
        assert_equal(random_state(self.device), after)
        self.inputs = (args, kwargs), theirs
        return result, expected

    def step(self, *args: Any, exact: bool = True, **kwargs: Any) -> None:
        """Calls both and runs both backwards on the same gradients."""
        result, expected = self.call(*args, **kwargs)
        loss(result).backward()
        loss(expected).backward()
        self.check(exact=exact)

    def check(self, *, exact: bool = True) -> None:
        """Gradients of inputs and parameters are equal, and so are parameters and buffers.

        Args:
            exact: Of gradients every bit is equal. On CUDA those are not for a gradient that comes
                with other strides than its output has: cuBLAS sums in another order.
        """
        if not exact:
            for name, parameter in self.eager.named_parameters():
                ours = self.graphed.get_parameter(name)
                torch.testing.assert_close(ours.grad, parameter.grad, rtol=1e-5, atol=1e-5)
                ours.grad.copy_(parameter.grad)
            for mine, other in zip(*map(tensors, self.inputs), strict=True):
                if mine.is_leaf and mine.grad is not None:
                    torch.testing.assert_close(other.grad, mine.grad, rtol=1e-5, atol=1e-5)
                    other.grad.copy_(mine.grad)
        eager, graphed = dict(self.eager.named_parameters()), dict(self.graphed.named_parameters())
        assert eager.keys() == graphed.keys()
        for name, parameter in eager.items():
            assert_equal(graphed[name].grad, parameter.grad, f"{name}.grad")
        assert_equal(dict(self.graphed.state_dict()), dict(self.eager.state_dict()))
        ours, theirs = self.inputs
        for mine, other in zip(tensors(ours), tensors(theirs), strict=True):
            if mine.is_leaf:
                assert_equal(other.grad, mine.grad, "input.grad")

    def modules(self) -> tuple[torch.nn.Module, torch.nn.Module]:
        return self.eager, self.graphed


def loss(result: Any) -> torch.Tensor:
    """Weights each element by its place, so that no gradient is like another."""
    total = torch.zeros(())
    for tensor in tensors(result):
        if tensor.requires_grad:
            weights = torch.linspace(-1, 2, max(tensor.numel(), 1), device=tensor.device)
            weights = weights[: tensor.numel()].view(tensor.shape).to(tensor.dtype)
            weighted = (tensor * weights).sum()
            total = total.to(tensor.device) + (weighted.real if weighted.is_complex() else weighted)
    return total


def copied(value: Any) -> Any:
    """The same arguments for the other twin, in tensors of their own."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return {key: copied(one) for key, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(copied, value))
    if isinstance(value, list | tuple):
        return type(value)(map(copied, value))
    return value


def random_state(device: torch.device) -> list[torch.Tensor]:
    state = [torch.get_rng_state()]
    if device.type == "cuda":
        state.append(torch.cuda.get_rng_state(device))
    return state


def set_random_state(state: list[torch.Tensor]) -> None:
    torch.set_rng_state(state[0])
    if len(state) > 1:
        torch.cuda.set_rng_state(state[1])


def assert_equal(ours: Any, theirs: Any, name: str = "result") -> None:
    """Equal bit for bit, in the same containers."""
    assert type(ours) is type(theirs), name
    if isinstance(ours, torch.Tensor):
        assert ours.shape == theirs.shape, name
        assert ours.dtype == theirs.dtype, name
        # Where grad mode is off, a view of a leaf says all the same that it requires grad.
        assert ours.requires_grad == theirs.requires_grad or not torch.is_grad_enabled(), name
        assert torch.equal(_bits(ours), _bits(theirs)), f"{name}: {ours} is not {theirs}"
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), name
        for key in ours:
            assert_equal(ours[key], theirs[key], f"{name}[{key!r}]")
    elif dataclasses.is_dataclass(ours):
        assert_equal(vars(ours), vars(theirs), name)
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs), name
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_equal(one, other, f"{name}[{place}]")
    else:
        assert ours == theirs, name


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().contiguous()
    # NaN is not equal to itself, and -0.0 is equal to 0.0; their bits say.
    return tensor.reshape(-1).view(torch.uint8) if tensor.numel() else tensor


def tensors(value: Any):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from tensors(one)
    elif dataclasses.is_dataclass(value):
        yield from tensors(vars(value))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors(one)
