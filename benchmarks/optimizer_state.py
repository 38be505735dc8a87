"""Compares optimizer state in few bits with fp32: bytes, time of a step, and training loss.

    python benchmarks/optimizer_state.py [--rounds 5] [--out optimizer_state.json]

Needs torchao and bitsandbytes. For each optimizer, with its name in a config:

- bytes: the bytes of its state per parameter of resnet18; each storage counts once.
- time: the CPU time of an optimizer step for resnet18 on one thread, relative to torch's own AdamW
  or SGD (`fused=True`, a single kernel) in the same round: median, smallest and largest.
- digits: the mean loss of the last 20 of 200 steps of a network of three layers, over five seeds,
  and the 95 % interval of its difference to torch's own optimizer. "bf16 to nearest" is torch's
  AdamW with moments that are rounded to bf16 after each step; a config cannot select it.

The script also writes the table in docs/optimizer-state.md.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docs_table
import quiet_machine
import timm
import torch
from native_half import processor
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from halfstep import Engine
from halfstep.train.build.optim import build_optimizer
from halfstep.train.config.optimizer import (
    AdamWConfig,
    LowBitAdamWConfig,
    OptimizerConfig,
    SgdConfig,
    TimmOptimizerConfig,
)
from halfstep.versions import version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.optim import Optimizer

NEAREST = "adamw, bf16 to nearest"
BITSANDBYTES = "bnbadamw8bit"
CONFIGS: dict[str, OptimizerConfig] = {
    "adamw": AdamWConfig(name="adamw"),
    "adamw, state: bf16": AdamWConfig(name="adamw", state="bf16"),
    NEAREST: AdamWConfig(name="adamw"),
    "adamw8bit": LowBitAdamWConfig(name="adamw8bit"),
    "adamwfp8": LowBitAdamWConfig(name="adamwfp8"),
    "adamw4bit": LowBitAdamWConfig(name="adamw4bit"),
    BITSANDBYTES: TimmOptimizerConfig(name="bnbadamw8bit", lr=1e-3, weight_decay=1e-2),
    "sgd": SgdConfig(name="sgd"),
    "sgd, state: bf16": SgdConfig(name="sgd", state="bf16"),
}
SEEDS = 5
STEPS, LAST = 200, 20
_T_95 = 2.776  # Student's t with four degrees of freedom


def of(title: str, model: nn.Module) -> Optimizer:
    """Return the optimizer of a row."""
    if title == BITSANDBYTES:
        import bitsandbytes  # used directly, because timm has this optimizer only on GPUs

        return bitsandbytes.optim.AdamW8bit(model.parameters(), lr=1e-3, weight_decay=1e-2)
    built = build_optimizer(CONFIGS[title], model, fused=True)
    if title == NEAREST:
        built.register_step_post_hook(_round_moments)
    return built


def _round_moments(optimizer: Optimizer, *_: Any) -> None:
    for state in optimizer.state.values():
        for name in ("exp_avg", "exp_avg_sq"):
            state[name].copy_(state[name].bfloat16())


def own(title: str) -> str:
    """Return the title of torch's own optimizer with which a row is compared."""
    return "sgd" if title.startswith("sgd") else "adamw"


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in an optimizer's state, also those inside of tensor subclasses."""
    if isinstance(value, dict):
        for each in value.values():
            yield from tensors(each)
    elif hasattr(value, "tensor_attrs"):
        for name in value.tensor_attrs:
            yield getattr(value, name)
    elif isinstance(value, torch.Tensor):
        yield value


def costs(rounds: int) -> dict[str, dict[str, Any]]:
    """Return the bytes per parameter and the time of a step, by optimizer."""
    model = timm.create_model("resnet18")
    torch.manual_seed(0)
    for param in model.parameters():
        param.grad = 1e-3 * torch.randn_like(param)
    parameters = sum(param.numel() for param in model.parameters())
    optimizers = {title: of(title, model) for title in CONFIGS if title != NEAREST}
    ratios: dict[str, list[float]] = {title: [] for title in optimizers}
    for number in range(rounds + 1):
        taken = {}
        for title, optimizer in optimizers.items():
            start = time.thread_time()
            optimizer.step()
            taken[title] = time.thread_time() - start
        if number:  # the first step creates the state
            for title in optimizers:
                ratios[title].append(taken[title] / taken[own(title)])
    found = {}
    for title, optimizer in optimizers.items():
        once = {each.untyped_storage().data_ptr(): each for each in tensors(dict(optimizer.state))}
        size = sum(each.untyped_storage().nbytes() for each in once.values())
        found[title] = {
            "bytes_a_parameter": round(size / parameters, 3),
            "step_over_torchs_own": {
                "median": round(statistics.median(ratios[title]), 2),
                "smallest": round(min(ratios[title]), 2),
                "largest": round(max(ratios[title]), 2),
            },
        }
    return found


def loss_on_digits(title: str, seed: int) -> float:
    """Return the mean loss of the last steps of a small network on digits."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )
    losses = []
    with Engine(model, of(title, model), recipe="fp32") as engine:
        for _ in range(STEPS):
            picked = torch.randint(0, len(images), (64,))
            loss = cross_entropy(engine.model(images[picked]), labels[picked])
            engine.backward(loss)
            engine.step()
            losses.append(float(loss.detach()))
    return statistics.mean(losses[-LAST:])


def training() -> dict[str, dict[str, Any]]:
    """Return the mean losses, and the intervals of their differences to torch's own optimizer."""
    losses = {title: [loss_on_digits(title, seed) for seed in range(SEEDS)] for title in CONFIGS}
    found = {}
    for title, mine in losses.items():
        differences = [one - two for one, two in zip(mine, losses[own(title)], strict=True)]
        half = _T_95 * statistics.stdev(differences) / math.sqrt(SEEDS)
        middle = statistics.mean(differences)
        found[title] = {
            "loss": round(statistics.mean(mine), 5),
            "difference": [round(middle - half, 5), round(middle + half, 5)],
        }
    return found


def table(document: dict[str, Any]) -> list[str]:
    """Return the lines of the table in the docs."""
    lines = [
        "| optimizer | bytes per parameter | step time ratio | loss on digits | difference |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for title, row in document["optimizers"].items():
        bytes_, step = row.get("bytes_a_parameter"), row.get("step_over_torchs_own")
        low, high = row["difference"]
        cells = (
            f"`{title}`" if title != NEAREST else title,
            f"{bytes_:.2f}" if bytes_ else "",
            f"{step['median']:.1f}" if step else "",
            f"{row['loss']:.4f}",
            "" if title == own(title) else f"{low:+.4f} to {high:+.4f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", default="optimizer_state.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    measured, trained = costs(arguments.rounds), training()
    document = {
        "environment": {
            **{name: version(name) for name in ("torch", "timm", "torchao", "bitsandbytes")},
            "processor": processor(), "threads": 1, "rounds": arguments.rounds, "seeds": SEEDS,
        },
        "optimizers": {title: measured.get(title, {}) | trained[title] for title in CONFIGS},
    }  # fmt: skip
    quiet_machine.keep(Path(__file__).parent / "results" / arguments.out, document)
    docs_table.put("optimizer-state.md", "table", table(document))


if __name__ == "__main__":
    main()
