"""Question: what do MXFP8, MXFP4 and NVFP4 cost in accuracy, in two small trainings?

Trains the `digits` config and a small transformer that predicts the characters of a licence text,
under bf16, fp8, mxfp8, mxfp4 and nvfp4 with five seeds each, all rehearsed. Writes accuracies,
validation losses and their differences to bf16 for each seed to results/four_bits.json. Then it
measures the CPU time of a step of the digits config under each recipe, and the time of a comparison
with three seeds; `--time` measures these alone and keeps the rest of the result. Takes about twenty
minutes on two cores; after an interruption, the same command continues with the digits.

    python benchmarks/four_bits.py
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  (torch's own custom)

from halfstep import Engine
from halfstep.advise.subject import of_config
from halfstep.train.config import files
from halfstep.train.environment import describe

RECIPES = ("bf16", "fp8", "mxfp8", "mxfp4", "nvfp4")
SEEDS = 5
COMPARED, COMPARED_SEEDS = ("bf16", "fp8", "mxfp8", "nvfp4"), 3
ROUNDS, ROUND_STEPS, WARM_STEPS = 7, 5, 3
RESULT = Path(__file__).parent / "results" / "four_bits.json"
TEXT = Path(__file__).parent.parent / "LICENSE"

WIDTH, HEADS, BLOCKS, CONTEXT, BATCH, STEPS = 64, 4, 4, 64, 16, 200


class Attention(nn.Module):
    """Causal self-attention whose projections are linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.outputs = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return new features, shape (batch, context, width)."""
        batch, context, _ = features.shape
        heads = self.inputs(features).view(batch, context, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        mapped: torch.Tensor = self.outputs(mixed.transpose(1, 2).reshape(batch, context, WIDTH))
        return mapped


class Block(nn.Module):
    """Attention and a two-layer network, each after a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.attention = Attention()
        self.network = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return new features, shape (batch, context, width)."""
        features = features + self.attention(self.norms[0](features))
        mapped: torch.Tensor = features + self.network(self.norms[1](features))
        return mapped


class Transformer(nn.Module):
    """Predicts the next character of a text."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.characters, self.places = (
            nn.Embedding(count, WIDTH) for count in (characters, CONTEXT)
        )
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (batch, context, characters)."""
        features = self.characters(text) + self.places.weight[: text.shape[1]]
        logits: torch.Tensor = self.head(self.norm(self.blocks(features)))
        return logits


def transformer(recipe: str, seed: int, steps: int = STEPS) -> dict[str, Any]:
    """Train the transformer; return its validation loss, and which layers computed in what."""
    text = TEXT.read_text()
    known = sorted(set(text))
    codes = torch.tensor([known.index(character) for character in text])
    train, held_out = codes[: len(codes) * 9 // 10], codes[len(codes) * 9 // 10 :]
    torch.manual_seed(seed)
    model = Transformer(len(known))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    with Engine(model, optimizer, recipe=recipe, scheduler=schedule, seed=seed) as engine:
        for _ in range(steps):
            starts = torch.randint(len(train) - CONTEXT, (BATCH,))
            batch = torch.stack([train[start : start + CONTEXT + 1] for start in starts])
            with engine.autocast():
                logits = engine.model(batch[:, :-1])
                loss = F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
            engine.backward(loss)
            engine.step()
        layers = engine.resolution.in_layers()
        count = (len(held_out) - 1) // CONTEXT
        whole = held_out[: count * CONTEXT + 1]
        with torch.no_grad(), engine.evaluating(), engine.autocast():
            logits = engine.model(whole[:-1].view(count, CONTEXT)).float()
    return {"loss": F.cross_entropy(logits.flatten(0, 1), whole[1:]).item(), "layers": layers}


def spread(values: list[float]) -> dict[str, float]:
    """Return the mean and the standard deviation of values, one for each seed."""
    return {"mean": statistics.mean(values), "sd": statistics.stdev(values)}


def digits(directory: Path, seeds: int) -> dict[str, Any]:
    """Run or continue the comparison on the digits; return accuracies and times by recipe."""
    comparison = ["compare", "digits", "--recipes", ",".join(RECIPES), "--seeds", str(seeds)]
    subprocess.run(
        [sys.executable, "-m", "halfstep", *comparison, "--out", str(directory)], check=True
    )
    found = json.loads((directory / "comparison.json").read_text())
    return {
        row["recipe"]: {
            "best_accuracy": row["measures"]["best_accuracy"],
            "difference": row["difference"],
            "train_seconds": row["measures"]["train_seconds"],
        }
        for row in found["rows"]
    }


def cost() -> dict[str, Any]:
    """Return the CPU time of a step of the digits config, by recipe, with its ratio to bf16's.

    In each round, every recipe takes some steps; a ratio compares two recipes in one round.
    """
    subject = of_config(files.load("digits"))
    engines = {}
    for recipe in RECIPES:
        model = subject.copied()
        engines[recipe] = Engine(model, subject.optimizer(model), recipe=recipe)

    def steps(engine: Engine, count: int) -> float:
        began = time.process_time()
        for number in range(count):
            with engine.autocast():
                loss = subject.loss(engine.model, subject.batches[number % len(subject.batches)])
            engine.backward(loss)
            engine.step()
        return (time.process_time() - began) / count

    taken: dict[str, list[float]] = {recipe: [] for recipe in RECIPES}
    for engine in engines.values():
        steps(engine, WARM_STEPS)
    for _ in range(ROUNDS):
        for recipe, engine in engines.items():
            taken[recipe].append(steps(engine, ROUND_STEPS))
    for engine in engines.values():
        engine.close()
    found = {}
    for recipe, seconds in taken.items():
        ratios = [mine / base for mine, base in zip(seconds, taken["bf16"], strict=True)]
        found[recipe] = {
            "cpu_ms": 1e3 * statistics.median(seconds),
            "ratio": statistics.median(ratios),
            "largest_ratio": max(ratios),
        }
    return found


def time_of_comparison() -> dict[str, Any]:
    """Compare the digits under four recipes and three seeds; return the seconds that it took."""
    comparison = ["compare", "digits", "--recipes", ",".join(COMPARED)]
    comparison += ["--seeds", str(COMPARED_SEEDS)]
    with tempfile.TemporaryDirectory() as folder:
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        command = [sys.executable, "-m", "halfstep", *comparison, "--out", folder]
        subprocess.run(command, check=True)
        seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"command": "halfstep " + " ".join(comparison), "seconds": seconds, "cpu_seconds": cpu}


def trained(work: Path) -> dict[str, Any]:
    """Train under each recipe, and return the result."""
    losses: dict[str, list[float]] = {}
    layers = {}
    began = time.process_time()
    for recipe in RECIPES:
        runs = [transformer(recipe, seed) for seed in range(SEEDS)]
        losses[recipe], layers[recipe] = [run["loss"] for run in runs], runs[0]["layers"]
        print(f"{recipe}: {losses[recipe]}", flush=True)
    seconds = time.process_time() - began
    of_transformer = {
        recipe: {
            "validation_loss": spread(losses[recipe]),
            "difference": spread(
                [ours - base for ours, base in zip(losses[recipe], losses["bf16"], strict=True)]
            ),
            "layers": layers[recipe],
        }
        for recipe in RECIPES
    }
    return {
        "claim": "accuracy of block formats beside bf16, rehearsed on a CPU",
        "environment": describe(torch.device("cpu")),
        "seeds": SEEDS,
        "digits": digits(work, SEEDS),
        "transformer": of_transformer,
        "transformer_cpu_seconds": seconds,
    }


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("runs/bench/four_bits"))
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--time", action="store_true", help="measure the times alone")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if not given.time:
        given.out.write_text(json.dumps(trained(given.work), indent=2) + "\n")
    result = json.loads(given.out.read_text())
    times = {"step_cost": cost(), "comparison": time_of_comparison()}
    given.out.write_text(json.dumps({**result, **times}, indent=2) + "\n")


if __name__ == "__main__":
    main()
