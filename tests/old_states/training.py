"""What was trained when the states in this folder were written; running it writes them anew.

    PYTHONPATH=src:tests python -m old_states.training

writes to the folder of the day's release, so that releases to come prove that they load it. States
that are there are left alone: they are what users of old releases have.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import MultiStepLR

import halfstep
from halfstep.engine import EMA, Engine, load_sharded, save_sharded, shard
from halfstep.recipe import recipes
from halfstep.train.config.files import load
from halfstep.train.loop.loop import train

FOLDER = Path(__file__).parent
SAVED_AT = 5
"""Micro-steps before the state was saved; with two to a window, one is open."""
LAST = 13
COMPOSITIONS: dict[str, Any] = {
    "fp16-static": {"base": "fp16", "loss_scale": 128},
    "o2-reduce-bf16": {"base": "o2", "reduce": "bf16"},
    "bf16-sr-norms": {"base": "bf16-sr", "norms": "fp32"},
}
SHARDED = "o2"
CONFIG = """
name: small
recipe: fp16
epochs: 2
batch_size: 256
accumulate: 2
clip_norm: 1.0
log_every: 1
device: cpu
average: {decay: 0.9}
checkpoints: {every_steps: 2, keep: 9}
tracking: []
data: {resolution: 8}
model: {name: "import:old_states.training:classifier"}
optimizer: {name: sgd, lr: 0.05, momentum: 0.9}
schedule: {name: cosine}
"""
KEPT_STEP = "step-00000002.pt"


def specs() -> dict[str, Any]:
    """The recipes of the states, by the names of their files."""
    return dict(zip(recipes(), recipes(), strict=True)) | COMPOSITIONS


class Net(nn.Module):
    """Two linear layers and both kinds of norm layer; takes (n, 16)."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(16, 16)
        self.batch_norm = nn.BatchNorm1d(16)
        self.layer_norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        features = self.batch_norm(self.hidden(inputs)).tanh()
        return self.head(self.layer_norm(features))


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def classifier(num_classes: int, in_chans: int) -> nn.Module:
    """The model of the trainer's run."""
    return nn.Sequential(
        nn.Conv2d(in_chans, 4, 3, stride=2, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(36, num_classes),
    )


def engine_for(spec: Any, model: nn.Module) -> Engine:
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    return Engine(
        model,
        optimizer,
        recipe=spec,
        accumulate=2,
        clip_norm=1.0,
        scheduler=MultiStepLR(optimizer, [1, 4], gamma=0.5),
        average=EMA(0.9),
        seed=1,
    )


def go_on(engine: Engine, first: int, last: int) -> list[float]:
    """Train from one micro-step to another; return each loss and the loss scale after it.

    Every third loss has a scale of its own, and the fourth overflows where it is scaled.
    """
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(last, 16, 16, generator=generator)
    targets = torch.randn(last, 16, 3, generator=generator)
    seen = []
    for place in range(first, last):
        with engine.autocast():
            outputs = engine.model(inputs[place]).float()
            loss = (outputs - targets[place]).square().mean() * (1e4 if place == 3 else 1)
        engine.backward(loss, loss_id="own" if place % 3 == 2 else None)
        engine.step()
        seen += [loss.item(), engine.loss_scale]
    return seen


def made_with() -> dict[str, str]:
    """What decides the last bits of a product."""
    return {
        "torch": torch.__version__,
        "processor": _processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "onednn": os.environ.get("ONEDNN_MAX_CPU_ISA", "all"),
    }


def _processor() -> str:
    said = Path("/proc/cpuinfo")
    lines = said.read_text().splitlines() if said.exists() else []
    return next((line for line in lines if line.startswith("model name")), platform.processor())


def losses_of(run: Path, after: int) -> list[float]:
    """The losses of a run after a step, those of validations included."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if row["step"] > after]


def _write_states(folder: Path, next_losses: dict[str, list[float]]) -> None:
    for name, spec in specs().items():
        with engine_for(spec, net()) as engine:
            go_on(engine, 0, SAVED_AT)
            saved = {"engine": engine.state_dict(), "model": engine.model.state_dict()}
            torch.save(saved, folder / f"{name}.pt")
            next_losses[name] = go_on(engine, SAVED_AT, LAST)


def _write_sharded(rank: int, folder: str, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    with engine_for(SHARDED, shard(net(), SHARDED)) as engine:
        go_on(engine, 0, SAVED_AT)
        save_sharded(Path(folder) / "sharded", engine, extra={"epoch": 1})
    dist.destroy_process_group()


def _write_run(folder: Path, next_losses: dict[str, list[float]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        config, run = Path(directory) / "small.yaml", Path(directory) / "run"
        config.write_text(CONFIG)
        train(load(str(config)), run, quiet=True)
        next_losses["run"] = losses_of(run, after=2)
        (folder / "run" / "checkpoints").mkdir(parents=True)
        shutil.copy(run / "checkpoints" / KEPT_STEP, folder / "run" / "checkpoints")
        shutil.copy(run / "config.yaml", folder / "run")
        lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
        (folder / "run" / "metrics.jsonl").write_text("".join(lines[:2]))


def main() -> int:
    torch.set_num_threads(1)
    folder = FOLDER / halfstep.__version__
    if folder.exists():
        sys.stderr.write(f"{folder} is there already, and stays as it is\n")
        return 1
    folder.mkdir()
    next_losses: dict[str, list[float]] = {}
    _write_states(folder, next_losses)
    _write_run(folder, next_losses)
    with tempfile.TemporaryDirectory() as store:
        arguments = (str(folder), f"{store}/store")
        torch.multiprocessing.spawn(_write_sharded, arguments, nprocs=2)
    with engine_for(SHARDED, net()) as engine:
        load_sharded(folder / "sharded", engine)
        next_losses["sharded"] = go_on(engine, SAVED_AT, LAST)
    said = {"made_with": made_with(), "next_losses": next_losses}
    (folder / "next_losses.json").write_text(json.dumps(said, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
