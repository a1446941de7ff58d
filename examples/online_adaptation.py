"""A classifier of digits that turn: adapted on line by a captured step, and eagerly, beside none.

It is trained on upright digits, then meets a stream in which every batch is turned a little
further. Each batch is first classified, and what came out is the accuracy shown; then, labelled, it
is learned from: a few steps on the batch, taken in one launch each by `CudaGraphAdaptationStep`,
and the same steps eagerly by a twin. The two must stay equal, bit for bit.
`python online_adaptation.py`, with `--plot drift.png` for a picture where matplotlib is installed.
The digits are scikit-learn's, which has to be installed.
"""

import argparse
import copy
import importlib.util
import math
import os
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # What makes cuBLAS deterministic.

import torch
from sklearn.datasets import load_digits
from torch import nn

from tensorplay_adapt import CudaGraphAdaptationStep

BATCH = 32
NAMES = ("not adapted", "adapted", "eager twin")


def turned(images: torch.Tensor, degrees: float) -> torch.Tensor:
    """Images of 8 × 8, turned about their middle."""
    angle = math.radians(degrees)
    turn = torch.tensor(
        [[math.cos(angle), -math.sin(angle), 0.0], [math.sin(angle), math.cos(angle), 0.0]],
        device=images.device,
    ).expand(len(images), 2, 3)
    grid = nn.functional.affine_grid(turn, [len(images), 1, 8, 8], align_corners=False)
    square = images.view(-1, 1, 8, 8)
    return nn.functional.grid_sample(square, grid, align_corners=False).view(-1, 64)


def optimizer_of(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=rate, fused=True, capturable=True)


def eager_step(model, optimizer, images, labels):
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()


@torch.no_grad()
def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    return (model(images).argmax(1) == labels).float().mean().item()


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def count(text: str) -> int:
    """An argument that is an integer of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"it is {value}, and must be at least 1")
    return value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batches", type=count, default=240, help="length of the stream")
    parser.add_argument("--turn", type=float, default=180.0, help="degrees over the whole stream")
    parser.add_argument("--steps", type=count, default=2, help="steps on each batch")
    parser.add_argument("--device", help="default: the GPU if there is one, else the CPU")
    parser.add_argument("--plot", help="where to draw accuracy over time")
    options = parser.parse_args()
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install matplotlib")

    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_num_threads(1)  # For tensors this small, threads cost more than they give.
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32, device=device)
    labels = torch.tensor(digits.target, device=device)

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    first = optimizer_of(model, 2e-3)
    for _ in range(20):
        for rows in torch.randperm(len(images))[: len(images) // BATCH * BATCH].split(BATCH):
            eager_step(model, first, images[rows], labels[rows])
    models = dict(zip(NAMES, (model, copy.deepcopy(model), copy.deepcopy(model)), strict=True))
    eager = optimizer_of(models["eager twin"], 2e-3)
    ours = optimizer_of(models["adapted"], 2e-3)
    step = CudaGraphAdaptationStep.capture(
        models["adapted"],
        ours,
        images[:BATCH],
        labels[:BATCH],
        nn.functional.cross_entropy,
        device=device,
    )
    print(f"{len(images)} digits, upright: accuracy {accuracy(model, images, labels):.3f}; {step}")

    history = {name: [] for name in NAMES}
    seconds = {"adapted": 0.0, "eager twin": 0.0}
    same = True
    print("batch   degrees" + "".join(f"{name:>14}" for name in NAMES))
    for number in range(options.batches):
        degrees = options.turn * number / max(options.batches - 1, 1)
        rows = torch.randint(len(images), (BATCH,)).to(device)
        batch = turned(images[rows], degrees), labels[rows]
        for name in NAMES:
            history[name].append(accuracy(models[name], *batch))
        synchronize(device)
        began = time.perf_counter()
        for _ in range(options.steps):
            loss = step(*batch)
        synchronize(device)
        middle = time.perf_counter()
        for _ in range(options.steps):
            expected = eager_step(models["eager twin"], eager, *batch)
        synchronize(device)
        seconds["adapted"] += middle - began
        seconds["eager twin"] += time.perf_counter() - middle
        same = same and torch.equal(loss, expected)
        if (number + 1) % max(options.batches // 8, 1) == 0:
            recent = [sum(history[name][-20:]) / len(history[name][-20:]) for name in NAMES]
            print(
                f"{number + 1:5}   {degrees:7.1f}" + "".join(f"{one:14.3f}" for one in recent),
                flush=True,
            )

    pairs = zip(models["adapted"].parameters(), models["eager twin"].parameters(), strict=True)
    same = same and all(torch.equal(one, other) for one, other in pairs)
    taken = options.batches * options.steps
    micro = {name: one / taken * 1e6 for name, one in seconds.items()}
    print()
    means = {name: sum(values) / len(values) for name, values in history.items()}
    print("accuracy over the stream: " + ", ".join(f"{n} {v:.3f}" for n, v in means.items()))
    print(
        f"a step: captured {micro['adapted']:.0f} µs, eager {micro['eager twin']:.0f} µs, "
        f"{micro['eager twin'] / micro['adapted']:.1f} times"
    )
    print(f"losses and weights equal bit for bit: {'yes' if same else 'no'}")
    if options.plot:
        draw(history, options.turn, options.plot)
        print(f"drawn in {os.path.abspath(options.plot)}")
    return 0 if same else 1


def draw(history: dict[str, list[float]], turn: float, path: str) -> None:
    """Accuracy over the angle, a running mean of 20 batches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, style in zip(NAMES, ("-", "-", ":"), strict=True):
        values = history[name]
        smooth = [
            sum(part) / len(part)
            for n in range(len(values))
            if (part := values[max(0, n - 19) : n + 1])
        ]
        angles = [turn * n / max(len(values) - 1, 1) for n in range(len(values))]
        axes.plot(angles, smooth, style, label=name)
    axes.set(xlabel="degrees", ylabel="accuracy", ylim=(0, 1), title="Digits that turn")
    axes.legend()
    figure.savefig(path)


if __name__ == "__main__":
    sys.exit(main())
