"""A whole training step in one launch, beside eager, the idiom of torch's notes and host loops."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

from peers import gather
from record import Record, at_most, faster, record
from timing import Contender, microseconds, statement, until_done

NEEDS_GPU = True
WIDTH, LAYERS, BATCH = 256, 8, 64
CALL = "step(x, y)"


def adapt_step() -> list[Record]:
    """Host time of a step: 8 × (Linear(256) + ReLU), batch 64, fused AdamW."""
    import torch

    model, x, y = _model(LAYERS)
    ways = {
        "ours": _ours(copy.deepcopy(model), x, y),
        "idiom": _by_hand(copy.deepcopy(model), x, y),
        "eager": _eagerly(copy.deepcopy(model)),
    }
    _expect_equal(ways, x, y)
    contenders = {label: statement(CALL, step=way, x=x, y=y) for label, way in ways.items()}
    more, absent = gather(
        {"tensordict": lambda: statement(CALL, step=_tensordict(model, x, y), x=x, y=y)}
    )
    measured = microseconds(
        contenders | more, synchronize=torch.cuda.synchronize, calls=20, batches=20
    )
    whole = microseconds(
        {label: until_done(contenders[label]) for label in ("ours", "idiom")},
        synchronize=torch.cuda.synchronize,
        calls=50,
        batches=5,
    )
    return [
        record(
            "adapt_step",
            measured,
            unit="µs",
            goals=[at_most(0.3, "idiom")],
            note="; ".join(
                filter(
                    None,
                    (
                        "host time of step(x, y), medians; idiom: copy_, replay, clone of "
                        "torch.cuda.CUDAGraph; losses and weights equal before it",
                        absent,
                    ),
                )
            ),
        ),
        record(
            "adapt_step_done",
            whole,
            unit="µs",
            goals=[at_most(1.0, "idiom")],
            note="the same until the GPU is done, 50 steps in a row",
        ),
    ]


def adapt_rates() -> list[Record]:
    """Host time of a step whose learning rate changes each time."""
    import torch

    model, x, y = _model(LAYERS)
    code = "group['lr'] = next(rates); step(x, y)"
    contenders: dict[str, Contender] = {}
    for label, make in (("ours", _ours), ("eager", lambda model, *_: _eagerly(model))):
        way = make(copy.deepcopy(model), x, y)
        (group,) = way.optimizer.param_groups
        contenders[label] = statement(code, step=way, x=x, y=y, group=group, rates=_rates())
    measured = microseconds(contenders, synchronize=torch.cuda.synchronize, calls=20, batches=20)
    return [
        record(
            "adapt_rates",
            measured,
            unit="µs",
            goals=[faster(10, "eager")],
            note="host time, medians; a float that is followed by rewriting the nodes that hold it",
        )
    ]


def adapt_until() -> list[Record]:
    """Adaptation of a 2-layer MLP until a tolerance, 200 steps: one launch, beside host loops."""
    import torch

    steps = 200
    model, x, y = _model(2, width=64, batch=32)
    ours = _ours(copy.deepcopy(model), x, y)
    replayed = _ours(copy.deepcopy(model), x, y)
    eager = _eagerly(copy.deepcopy(model))

    def looped(step: Callable[..., Any]) -> int:
        taken = 1
        while step(x, y).item() > -1.0 and taken < steps:
            taken += 1
        return taken

    def launched() -> int:
        return int(ours.until(x, y, tolerance=-1.0, max_steps=steps).steps.item())

    for loop in (launched, lambda: looped(replayed), lambda: looped(eager)):
        if loop() != steps:
            raise RuntimeError("a loop took another number of steps")
    pairs = zip(ours.module.parameters(), eager.model.parameters(), strict=True)
    if not all(torch.equal(one, other) for one, other in pairs):
        raise RuntimeError("the loops did not end with the same weights")
    contenders = {
        "ours": statement("launched()", launched=launched),
        "replays": statement("looped(step)", looped=looped, step=replayed),
        "eager": statement("looped(step)", looped=looped, step=eager),
    }
    measured = microseconds(
        {label: until_done(one) for label, one in contenders.items()},
        synchronize=torch.cuda.synchronize,
        calls=1,
        batches=3,
        rounds=9,
    )
    return [
        record(
            "adapt_until",
            measured,
            unit="µs",
            goals=[faster(12, "eager"), faster(1, "replays")],
            note=f"{steps} steps with the test of the loss after each, end to end, medians; 2 × "
            "(Linear(64) + ReLU), batch 32, fused AdamW; host loops read it with .item(); weights "
            "equal after one loop",
        )
    ]


def adapt_scale() -> list[Record]:
    """Host time of a step over the number of parameter tensors."""
    import torch

    records = []
    for layers in (2, 8, 32, 128):
        model, x, y = _model(layers)
        ways = {
            "ours": _ours(copy.deepcopy(model), x, y),
            "idiom": _by_hand(copy.deepcopy(model), x, y),
        }
        measured = microseconds(
            {label: statement(CALL, step=way, x=x, y=y) for label, way in ways.items()},
            synchronize=torch.cuda.synchronize,
            calls=10,
            batches=10,
            rounds=7,
        )
        records.append(
            record(
                f"adapt_scale_{2 * layers}",
                measured,
                unit="µs",
                goals=[at_most(1.0, "idiom")],
                note=f"host time, medians; {2 * layers} parameter tensors, every one looked at in "
                f"each call; captured in {ways['ours'].report().capture_seconds * 1e3:.0f} ms",
            )
        )
    return records


def adapt_reset() -> list[Record]:
    """Host time of going back to a snapshot of model and optimizer."""
    import torch

    model, x, y = _model(LAYERS)
    ours, eager = _ours(copy.deepcopy(model), x, y), _eagerly(copy.deepcopy(model))
    for step in (ours, eager):
        step(x, y)
    snapshot = ours.snapshot()
    live = _state(eager.model, eager.optimizer)
    saved = [one.clone() for one in live]
    for step in (ours, eager):
        step(x, y)
    ours.reset_to(snapshot)
    if not all(map(torch.equal, _state(ours.module, ours.optimizer), saved)):
        raise RuntimeError("the reset did not go back to the snapshot")

    @torch.no_grad()
    def copied() -> None:
        for one, value in zip(live, saved, strict=True):
            one.copy_(value)

    @torch.no_grad()
    def together() -> None:
        torch._foreach_copy_(live, saved)

    contenders = {
        "ours": statement("reset_to(snapshot)", reset_to=ours.reset_to, snapshot=snapshot),
        "copy_ each": statement("copied()", copied=copied),
        "_foreach_copy_": statement("together()", together=together),
    }
    measured = microseconds(contenders, synchronize=torch.cuda.synchronize, calls=20, batches=10)
    return [
        record(
            "adapt_reset",
            measured,
            unit="µs",
            goals=[faster(5, "copy_ each")],
            note=f"host time, medians; {len(live)} tensors of model and fused AdamW",
        )
    ]


class _eagerly:
    """A training as torch's users write it down."""

    def __init__(self, model: Any) -> None:
        self.model, self.optimizer = model, _adamw(model)

    def __call__(self, x: Any, y: Any) -> Any:
        import torch

        self.optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class _by_hand(_eagerly):
    """The idiom of torch's notes: warm up, capture, then copy_, replay, clone."""

    def __init__(self, model: Any, x: Any, y: Any) -> None:
        import torch

        super().__init__(model)
        before = copy.deepcopy(model.state_dict())
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                super().__call__(x, y)
        torch.cuda.current_stream().wait_stream(side)
        model.load_state_dict(before)
        for state in self.optimizer.state.values():
            for value in state.values():
                value.zero_()
        self.optimizer.zero_grad(set_to_none=True)
        self.x, self.y = x.clone(), y.clone()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = super().__call__(self.x, self.y)

    def __call__(self, x: Any, y: Any) -> Any:
        self.x.copy_(x)
        self.y.copy_(y)
        self.graph.replay()
        return self.loss.detach().clone()


def _ours(model: Any, x: Any, y: Any) -> Any:
    import torch

    from tensorplay_adapt import CudaGraphAdaptationStep

    return CudaGraphAdaptationStep.capture(model, _adamw(model), x, y, torch.nn.functional.mse_loss)


def _tensordict(model: Any, x: Any, y: Any) -> Any:
    from tensordict.nn import CudaGraphModule

    made = CudaGraphModule(_eagerly(copy.deepcopy(model)))
    for _ in range(25):  # It warms up by its calls.
        made(x, y)
    return made


def _adamw(model: Any) -> Any:
    import torch

    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True, capturable=True)


def _state(model: Any, optimizer: Any) -> list[Any]:
    parameters = [one.detach() for one in model.parameters()]
    return parameters + [
        value for one in model.parameters() for value in optimizer.state[one].values()
    ]


def _model(layers: int, width: int = WIDTH, batch: int = BATCH) -> tuple[Any, Any, Any]:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    parts = (
        part for _ in range(layers) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())
    )
    model = torch.nn.Sequential(*parts).cuda()
    return model, torch.randn(batch, width, device="cuda"), torch.randn(batch, width, device="cuda")


def _expect_equal(ways: dict[str, Any], x: Any, y: Any) -> None:
    import torch

    for number in range(10):
        losses = [way(x + number, y) for way in ways.values()]
        if not all(torch.equal(losses[0], other) for other in losses[1:]):
            raise RuntimeError(f"the losses of step {number} differ: {losses}")


def _rates() -> Any:
    number = 0
    while True:
        number += 1
        yield 1e-3 / (1 + number % 1000)


BENCHMARKS = (adapt_step, adapt_rates, adapt_until, adapt_scale, adapt_reset)
