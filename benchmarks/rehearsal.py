"""Measures the accuracy of a rehearsal: one network and one set of batches, in several ways.

fp16 autocast is rehearsed on the CPU with fp32 kernels, computed by PyTorch's own CPU kernels, and
computed on a GPU if there is one. All ways use the same batches, so the gradients of each step can
be compared. Cosines and loss differences are relative to fp32 on the CPU. `first_overflow` is the
first step with non-finite gradients, under a loss scale that doubles in each step.

    python benchmarks/rehearsal.py
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

from halfstep import recipe
from halfstep.kernels.cpu_half import cpu_half
from halfstep.kernels.cuda_policy import cuda_autocast_policy

RESULTS = Path(__file__).parent / "results" / "rehearsal.json"


@dataclass(frozen=True)
class Curve:
    """The results of one way to compute, compared with fp32 on the CPU.

    Attributes:
        how: "fp32", "rehearsed", "native" (PyTorch's CPU kernels) or "gpu".
        losses: The training loss of each step.
        loss_deviation: Mean absolute difference between these losses and those of fp32.
        loss_deviation_from_rehearsed: Mean absolute difference between these losses and those of
            the rehearsal.
        cosine_median: Median over the steps of the cosine similarity between the gradients and
            those of fp32 at the same weights.
        cosine_lowest: The lowest cosine similarity.
        first_overflow: The first step (from 1) with non-finite gradients under a doubling scale.
        overflow_scale: The loss scale of that step.
    """

    how: str
    losses: list[float]
    loss_deviation: float
    loss_deviation_from_rehearsed: float
    cosine_median: float
    cosine_lowest: float
    first_overflow: int | None
    overflow_scale: float | None


def network() -> nn.Sequential:
    """Return a small network with BatchNorm, with the same initial weights each time."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(512, 10)),
    )


def batches(steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return batches of 32 digits, in the order of the data set."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)
    places = torch.arange(steps * 32).reshape(steps, 32) % len(labels)
    return [(images[place], labels[place]) for place in places]


def kernels(how: str) -> AbstractContextManager[object]:
    """Return the context in which one way computes."""
    stack = ExitStack()
    if how != "gpu":
        stack.enter_context(cuda_autocast_policy())
    if how == "rehearsed":
        stack.enter_context(cpu_half())
    return stack


def gradients(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, *, half: bool, scale: float
) -> tuple[float, torch.Tensor]:
    """Return the loss, and all gradients as one unscaled vector in fp32."""
    model.zero_grad()
    device = next(model.parameters()).device
    with torch.autocast(device.type, torch.float16, enabled=half):
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
    (loss * scale).backward()
    flat = torch.cat([param.grad.flatten().cpu() for param in model.parameters()])
    return float(loss.detach()), flat / scale


def curve(how: str, steps: int, reference: list[float], rehearsed: list[float]) -> Curve:
    """Train, and compare the gradients of each step with those of fp32 at the same weights."""
    device = torch.device("cuda" if how == "gpu" else "cpu")
    model, twin = network().to(device), network()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    losses, cosines = [], []
    with kernels(how):
        for images, labels in batches(steps):
            state = {name: value.cpu() for name, value in model.state_dict().items()}
            twin.load_state_dict(state)
            _, exact = gradients(twin, images, labels, half=False, scale=1.0)
            loss, ours = gradients(model, images, labels, half=how != "fp32", scale=1024.0)
            cosines.append(float(nn.functional.cosine_similarity(ours, exact, 0)))
            for param in model.parameters():
                param.grad /= 1024.0
            optimizer.step()
            losses.append(loss)
        step, scale = first_overflow(how, device)
    return Curve(
        how,
        [round(loss, 6) for loss in losses],
        deviation(losses, reference),
        deviation(losses, rehearsed),
        statistics.median(cosines),
        min(cosines),
        step,
        scale,
    )


def first_overflow(how: str, device: torch.device) -> tuple[int | None, float | None]:
    """Double the loss scale in each step; return the first step that overflows, and its scale."""
    if how == "fp32":
        return None, None
    model = network().to(device)
    for step, (images, labels) in enumerate(batches(40), start=1):
        scale = 2.0**step
        _, flat = gradients(model, images, labels, half=True, scale=scale)
        if not flat.isfinite().all():
            return step, scale
    return None, None


def deviation(losses: list[float], others: list[float]) -> float:
    """Return the mean absolute difference; 0 if `others` is empty."""
    return statistics.fmean(abs(a - b) for a, b in zip(losses, others or losses, strict=True))


def main() -> None:
    """Compare, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    ways = ["fp32", "rehearsed", "native"]
    if torch.cuda.is_available():
        ways.append("gpu")
    curves: dict[str, Curve] = {}
    print(
        f"{'fp16 by':12}{'loss to fp32':>14}{'to rehearsed':>14}{'cosine':>10}{'lowest':>10}"
        "  overflow at scale"
    )
    for how in ways:
        reference = curves["fp32"].losses if "fp32" in curves else []
        rehearsed = curves["rehearsed"].losses if "rehearsed" in curves else []
        found = curves[how] = curve(how, arguments.steps, reference, rehearsed)
        print(
            f"{how:12}{found.loss_deviation:14.6f}{found.loss_deviation_from_rehearsed:14.6f}"
            f"{found.cosine_median:10.6f}{found.cosine_lowest:10.6f}  {found.overflow_scale}"
        )
    environment = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "on_cpu": str(recipe("fp16").resolve("cpu")),
        "steps": arguments.steps,
    }
    document = {"environment": environment, "curves": [asdict(each) for each in curves.values()]}
    arguments.out.write_text(json.dumps(document, indent=2) + "\n")
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
