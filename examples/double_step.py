"""The cause of a NaN that cost its author days: a second `optimizer.step()` in a torch.amp loop.

Three loops train the same small network on scikit-learn's digits under fp16 autocast, from the same
initial weights and on the same batches:

- `correct`: scaler.step(optimizer), as in torch's documentation;
- `double step`: the same, followed by optimizer.step();
- `engine`: halfstep's engine, which raises an error if the loop calls optimizer.step().

The loss is summed over the batch, so the first gradients overflow at the default loss scale of
65536. That is normal: the scaler skips these steps and lowers the scale. The second step is not
skipped. It applies the infinite gradients, and every weight becomes NaN. Without an overflow, it
would update the weights twice, without a message.

    python examples/double_step.py
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F  # noqa: N812  (torch's own custom)

from halfstep import Engine

STEPS = 120
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scans, standardised, and their labels."""
    scans = load_digits()
    images = torch.tensor(scans.data, dtype=torch.float32, device=DEVICE)
    return (images - images.mean()) / images.std(), torch.tensor(scans.target, device=DEVICE)


def new_network() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return the initial network and its optimizer, the same for every loop."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
    network.to(DEVICE)
    return network, torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)


def batches(images: torch.Tensor, labels: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the same batches of 64 for every loop."""
    order = torch.Generator().manual_seed(0)
    chosen = [torch.randint(0, len(labels), (64,), generator=order) for _ in range(STEPS)]
    return [(images[indices.to(DEVICE)], labels[indices.to(DEVICE)]) for indices in chosen]


def plain_loop(data: list[tuple[torch.Tensor, torch.Tensor]], *, double: bool) -> list[float]:
    """Train with torch.amp alone and return the loss of every step."""
    network, optimizer = new_network()
    scaler = torch.amp.GradScaler(DEVICE)
    losses = []
    for images, labels in data:
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = F.cross_entropy(network(images), labels, reduction="sum")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if double:
            optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item() / len(labels))
    return losses


def engine_loop(data: list[tuple[torch.Tensor, torch.Tensor]]) -> list[float]:
    """Train with the engine and return the loss of every step."""
    network, optimizer = new_network()
    losses = []
    with Engine(network, optimizer, recipe="fp16") as engine:
        for images, labels in engine.batches(data):
            with engine.autocast():
                loss = F.cross_entropy(engine.model(images), labels, reduction="sum")
            engine.backward(loss)
            engine.step()
            losses.append(loss.item() / len(labels))
        try:
            optimizer.step()
        except RuntimeError as refused:
            print(f"the engine refuses the second step: {refused}\n")
    return losses


def first_nonfinite(losses: list[float]) -> int | None:
    """Return the first step, from 1, at which the loss is not finite."""
    finite = torch.tensor(losses).isfinite().tolist()
    return finite.index(False) + 1 if False in finite else None


def main() -> None:
    """Run the three loops and print their results."""
    data = batches(*digits())
    loops = {
        "correct": plain_loop(data, double=False),
        "double step": plain_loop(data, double=True),
        "engine": engine_loop(data),
    }
    print(f"{'loop':<12} {'first loss':>10} {'last loss':>10}  first non-finite step")
    for name, losses in loops.items():
        nonfinite = first_nonfinite(losses)
        print(f"{name:<12} {losses[0]:>10.3f} {losses[-1]:>10.3f}  {nonfinite or 'never'}")


if __name__ == "__main__":
    main()
