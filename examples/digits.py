"""Trains a classifier of handwritten digits twice: by a captured step, and eagerly.

The step is forward, loss, backward and AdamW in one graph, taken by one launch. Both trainings
begin with the same weights and see the same minibatches, so they must end with the same weights,
bit for bit. It runs on the GPU if there is one, else on the CPU: `python digits.py`, or
`nox -s demo`. The digits are scikit-learn's, which has to be installed.
"""

import argparse
import os
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # What makes cuBLAS deterministic.

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from tensorplay_adapt import CudaGraphAdaptationStep
from tensorplay_torch import export_dot

BATCH = 32


class Training:
    """A model, its optimizer and one training step."""

    def __init__(self, weights: dict[str, torch.Tensor] | None, device: torch.device) -> None:
        self.model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
        if weights is not None:
            self.model.load_state_dict(weights)
        # capturable: the step count is a tensor on the device, so that replays advance it.
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=2e-3, fused=True, capturable=True
        )

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def accuracy(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        return (self.model(images).argmax(1) == labels).float().mean().item()


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
    parser.add_argument("--epochs", type=count, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", help="default: the GPU if there is one, else the CPU")
    parser.add_argument("--dot", default="digits.dot", help="where the graph is drawn")
    options = parser.parse_args()

    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    torch.manual_seed(options.seed)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # For tensors this small, threads cost more than they give.

    digits = load_digits()
    split = train_test_split(
        torch.tensor(digits.data / 16, dtype=torch.float32, device=device),
        torch.tensor(digits.target, device=device),
        test_size=0.2,
        random_state=options.seed,
    )
    images, test_images, labels, test_labels = split
    steps = len(images) // BATCH  # The batch shape is fixed; what is left over is dropped.
    print(f"{len(images)} images to train, {len(test_images)} to test, on {device}")

    replayed = Training(None, device)
    eager = Training(replayed.model.state_dict(), device)

    example = images[:BATCH], labels[:BATCH]
    synchronize(device)
    began = time.perf_counter()
    step = CudaGraphAdaptationStep.capture(
        replayed.model, replayed.optimizer, *example, nn.functional.cross_entropy, device=device
    )
    synchronize(device)
    capture_seconds = time.perf_counter() - began

    seconds = {"replayed": 0.0, "eager": 0.0}
    print("epoch   loss replayed   loss eager")
    for epoch in range(1, options.epochs + 1):
        order = torch.randperm(len(images))[: steps * BATCH].to(device)
        batches = list(zip(images[order].split(BATCH), labels[order].split(BATCH), strict=True))
        synchronize(device)
        began = time.perf_counter()
        for batch in batches:
            loss = step(*batch)
        synchronize(device)
        seconds["replayed"] += time.perf_counter() - began

        began = time.perf_counter()
        for batch in batches:
            eager_loss = eager.step(*batch)
        synchronize(device)
        seconds["eager"] += time.perf_counter() - began
        if epoch % 5 == 0 or epoch in (1, options.epochs):
            print(f"{epoch:5}   {loss.item():13.6f}   {eager_loss.item():10.6f}", flush=True)

    speed = {name: options.epochs * steps / taken for name, taken in seconds.items()}
    times = speed["replayed"] / speed["eager"]
    scores = [training.accuracy(test_images, test_labels) for training in (replayed, eager)]
    pairs = zip(replayed.model.parameters(), eager.model.parameters(), strict=True)
    same = all(torch.equal(one, other) for one, other in pairs)
    export_dot(options.dot, graph=step.graph)

    print()
    print("                replayed        eager")
    print(f"accuracy      {scores[0]:10.4f}   {scores[1]:10.4f}")
    print(f"steps/s       {speed['replayed']:10.0f}   {speed['eager']:10.0f}   {times:.1f} times")
    print(f"capture       {capture_seconds * 1e3:7.1f} ms")
    print(f"weights equal bit for bit: {'yes' if same else 'no'}")
    nodes = step.graph.topology.count()
    print(f"the graph, {nodes} nodes, is drawn in {os.path.abspath(options.dot)}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
