"""Records what every recipe computes, bit for bit, and finds what a refactoring has changed.

    python tests/bitwise.py record /tmp/before.json     # at the commit before the refactoring
    python tests/bitwise.py check /tmp/before.json      # as often as wanted after it

30 optimizer steps on scikit-learn's digits under every named recipe and some compositions, with
accumulation, clipping and one step whose loss is so large that scaled fp16 gradients overflow: in
one process, in two under DDP and FSDP2, through Apex's API and through `halfstep train`. Recorded
are the losses and results of all steps, and hashes of the engine's state half-way (a window is open
then), of the final parameters, buffers and state, and of checkpoints. `check` names each difference
and exits with 1. `--slow-parts` adds `halfstep train` under the other recipes and in two processes;
`--except PATTERN` leaves out keys that are meant to change.

Bits depend on the processor and on the release of torch, so a record serves the machine that made
it, and `check` refuses one from elsewhere. Nothing here imports more than the public API, so that
the script runs unchanged on both sides of the refactoring.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import platform
import random
import re
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import MultiStepLR

import halfstep
import halfstep.engine
from halfstep import Engine, recipe, recipes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Record = dict[str, str]
"""A value or hash for each key, such as "one/fp16/sgd/loss/12"."""

STEPS = 30
ACCUMULATE = 2
BATCH = 8
OPEN_WINDOW = STEPS + 1
"""Micro-steps after which the engine's state is recorded within a window."""
OVERFLOW_STEP = 21
OVERFLOW_FACTOR = 1e4
"""Finite in fp16, unless the loss is scaled as well."""

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": partial(SGD, lr=0.05, momentum=0.9),
    "adamw": partial(AdamW, lr=3e-3),
}
COMPOSITIONS: dict[str, Any] = {
    "fp16+tf32": "fp16+tf32",
    "fp8+tf32": "fp8+tf32",
    "fp16, static scale": {"base": "fp16", "loss_scale": 128},
    "fp16, growing scale": {"base": "fp16", "loss_scale": {"init": 1024, "growth_interval": 4}},
    "fp16, reduce fp32": {"base": "fp16", "reduce": "fp32"},
    "o2, reduce bf16": {"base": "o2", "reduce": "bf16"},
    "o2, fp16 gradients": {"base": "o2", "gradients": "fp16"},
    "half-bn32, masters": {"base": "half-bn32", "master_weights": True, "loss_scale": "dynamic"},
    "bf16-sr, fp32 norms": {"base": "bf16-sr", "norms": "fp32"},
    "bf16-true, masters": {"base": "bf16-true", "master_weights": True},
    "o3, fp16 accumulation": {"base": "o3", "accumulation": "fp16"},
}
SITUATIONS = ("fp32", "fp16", "o2", "bf16-sr", "bf16-kahan", "fp8-delayed")
"""Recipes that are also run with everything else that an engine can be asked for."""
OF_ONE_PROCESS = ("fp16+tf32", "fp8+tf32", "fp16, static scale", "o3, fp16 accumulation")
"""Compositions of which several processes know nothing that their parts do not show."""
WITH_ADAMW = ("fp16", "o2")
"""Recipes that several processes also train with AdamW."""
TRAINED = ("fp32", "tf32", "fp16", "half", "o2", "bf16-sr", "bf16-kahan", "fp8-delayed")
"""Recipes that `halfstep train` runs under; the slow parts have all of them."""


class Block(nn.Module):
    """A linear layer and a layer norm; what FSDP2 gathers as one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 16)
        self.layer_norm = nn.LayerNorm(16)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = self.layer_norm(self.linear(features))
        return normed.relu()


class Net(nn.Module):
    """A convolution, both kinds of norm layer, a list of one block and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.batch_norm = nn.BatchNorm2d(4)
        self.blocks = nn.Sequential(Block())
        self.head = nn.Linear(16, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.batch_norm(self.conv(images)).relu().flatten(1)
        logits: torch.Tensor = self.head(self.blocks(features))
        return logits


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def batches(rank: int = 0, world: int = 1) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The digits in order; each process has its own."""
    scans = load_digits()
    images = torch.tensor(scans.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(scans.target)
    order = torch.arange(STEPS * ACCUMULATE * world * BATCH) % len(labels)
    places = order.reshape(-1, BATCH)[rank::world]
    return [(images[place], labels[place]) for place in places]


def public(name: str) -> Any:
    """Find a name of the engine's where it stands: at the top, or in `halfstep.engine`."""
    return getattr(halfstep, name, None) or getattr(halfstep.engine, name)


def leaves(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yield each leaf of nested containers with its key, a tensor as the hash of its bits."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from leaves(each, f"{key}/{name}")
    elif isinstance(value, (list, tuple)):
        for place, each in enumerate(value):
            yield from leaves(each, f"{key}/{place}")
    elif isinstance(value, torch.Tensor):
        whole = value.to_local() if hasattr(value, "to_local") else value
        bits = whole.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        digest = hashlib.sha256(bits).hexdigest()[:16]
        yield key, f"{value.dtype} {tuple(value.shape)} {digest}"
    else:
        yield key, repr(value)


def keep(into: Record, key: str, value: Any) -> None:
    into.update(leaves(value, key))


def follow(
    engine: Engine,
    into: Record,
    key: str,
    rank: int = 0,
    world: int = 1,
    save: Callable[[], None] | None = None,
) -> None:
    """Train for all steps, and record them and what they leave; save where a window is open."""
    micro_steps = batches(rank, world)
    for place, (images, labels) in enumerate(micro_steps):
        with engine.autocast():
            loss = cross_entropy(engine.model(images).float(), labels)
        if place // ACCUMULATE == OVERFLOW_STEP:
            loss = loss * OVERFLOW_FACTOR
        engine.backward(loss)
        result = engine.step()
        keep(into, f"{key}/loss/{place}", loss.item())
        if result.closed:
            said = [result.stepped, result.loss_scale, result.grad_norm]
            keep(into, f"{key}/step/{place // ACCUMULATE}", said)
        if place + 1 == OPEN_WINDOW:
            keep(into, f"{key}/state of an open window", engine.state_dict())
            if save is not None:
                save()
    finish(engine, into, key)


def finish(engine: Engine, into: Record, key: str) -> None:
    """Record the state, evaluation, and the model that a closed engine leaves."""
    keep(into, f"{key}/state", engine.state_dict())
    keep(into, f"{key}/model", [model.state_dict() for model in engine.bare_models])
    with torch.no_grad(), engine.evaluating():
        keep(into, f"{key}/evaluated", [model(batches()[0][0]) for model in engine.models])
    engine.close()
    keep(into, f"{key}/model when closed", [m.state_dict() for m in engine.bare_models])


def all_recipes() -> dict[str, Any]:
    return dict(zip(recipes(), recipes(), strict=True)) | COMPOSITIONS


def one_process(into: Record) -> None:
    for name, spec in all_recipes().items():
        keep(into, f"settings/{name}", recipe(spec).settings())
        keep(into, f"resolution/{name}", str(recipe(spec).resolve("cpu")))
        for kind, build in OPTIMIZERS.items():
            model = net()
            optimizer = build(model.parameters())
            engine = Engine(model, optimizer, recipe=spec, accumulate=ACCUMULATE, clip_norm=1.0)
            follow(engine, into, f"one/{name}/{kind}")
    for name in SITUATIONS:
        with_averages_and_schedules(into, f"one/{name}, more")
        two_optimizers(into, f"one/{name}, two optimizers", name)


def with_averages_and_schedules(into: Record, key: str) -> None:
    """The other ways to clip, averages, schedules, a fused optimizer, and a resume half-way."""
    name = key.removeprefix("one/").removesuffix(", more")
    for average in ("EMA", "SWA"):
        clip = {"clip_value": 0.05} if average == "EMA" else {"clip_adaptive": 0.02}

        def start(average: str = average, clip: dict[str, float] = clip) -> Engine:
            model = net()
            optimizer = AdamW(model.parameters(), lr=3e-3, fused=average == "EMA")
            kept = public(average)(*([0.9] if average == "EMA" else []))
            schedule = MultiStepLR(optimizer, [10, 20])
            settings = {"accumulate": ACCUMULATE, "average": kept, "seed": 3, **clip}
            return Engine(model, optimizer, recipe=name, scheduler=schedule, **settings)

        engine = start()
        for images, labels in batches()[:OPEN_WINDOW]:
            with engine.autocast():
                loss = cross_entropy(engine.model(images).float(), labels)
            engine.backward(loss, samples=len(labels))
            engine.step()
        state, weights = engine.state_dict(), engine.bare_model.state_dict()
        engine.close()
        engine = start()
        engine.bare_model.load_state_dict(weights)
        engine.load_state_dict(state)
        for images, labels in engine.batches(batches()[OPEN_WINDOW:-2]):
            with engine.autocast():
                loss = cross_entropy(engine.model(images[:-1]).float(), labels[:-1])
            engine.backward(loss, samples=len(labels) - 1)
            engine.step()
            keep(into, f"{key}/{average}/loss", loss.item())
        keep(into, f"{key}/{average}/averaged", engine.averaged_state_dict())
        finish(engine, into, f"{key}/{average}")


def two_optimizers(into: Record, key: str, name: str) -> None:
    """Two models whose optimizers take turns, a loss with its own scale, a gradient penalty."""
    models = [net(0), net(1)]
    optimizers = [
        OPTIMIZERS[kind](m.parameters()) for kind, m in zip(OPTIMIZERS, models, strict=True)
    ]
    engine = Engine(models, optimizers, recipe=name, accumulate=ACCUMULATE, clip_norm=0.5)
    for place, (images, labels) in enumerate(batches()):
        turn = place // ACCUMULATE % 2
        with engine.autocast():
            outputs = [model(images).float() for model in engine.models]
            loss = cross_entropy(outputs[turn], labels)
            distance = (outputs[turn] - outputs[1 - turn].detach()).square().mean()
        mine = [engine.optimizers[turn]]
        engine.backward(loss, optimizers=mine, retain_graph=True)
        engine.backward(distance, optimizers=mine, loss_id="distance")
        result = engine.step(optimizers=mine)
        keep(into, f"{key}/loss/{place}", [loss.item(), distance.item()])
        keep(into, f"{key}/step/{place}", [each.grad_norm for each in result.optimizers])
    images = batches()[0][0].requires_grad_()
    if not name.startswith("fp8"):  # whose products are not twice differentiable everywhere
        with engine.autocast():
            out = engine.models[0](images).float().square().sum()
        grads = engine.grad(out, images, create_graph=True)
        keep(into, f"{key}/grad", grads)
        engine.backward(grads[0].square().mean())
        keep(into, f"{key}/norms of a penalty", engine.step(close=True).grad_norm)
    finish(engine, into, key)


def through_apex(into: Record) -> None:
    """The levels of Apex, O1 last: it casts for the whole process."""
    from halfstep.apex import amp

    for level in ("O0", "O2", "O3", "O1"):
        model = net()
        model, optimizer = amp.initialize(
            model, OPTIMIZERS["sgd"](model.parameters()), opt_level=level, verbosity=0
        )
        for place, (images, labels) in enumerate(batches()[:STEPS]):
            loss = cross_entropy(model(images), labels)
            loss = loss * (OVERFLOW_FACTOR if place == OVERFLOW_STEP else 1)
            with amp.scale_loss(loss, optimizer) as scaled:
                scaled.backward()
            torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            keep(into, f"apex/{level}/loss/{place}", loss.item())
        keep(into, f"apex/{level}/model", model.state_dict())
        keep(into, f"apex/{level}/optimizer", optimizer.state_dict())
        keep(into, f"apex/{level}/amp", amp.state_dict())
    amp._amp_state.handle._deactivate()


def two_processes(into: Record) -> None:
    with tempfile.TemporaryDirectory() as directory:
        torch.multiprocessing.spawn(_one_of_two, (directory,), nprocs=2)
        for rank in range(2):
            into |= json.loads((Path(directory) / f"{rank}.json").read_text())
        for checkpoint in sorted(Path(directory).glob("fsdp-*")):
            model = net()
            kind = checkpoint.name.rsplit("-", 1)[1]
            spec = all_recipes()[checkpoint.name.removeprefix("fsdp-").removesuffix(f"-{kind}")]
            optimizer = OPTIMIZERS[kind](model.parameters())
            engine = Engine(model, optimizer, recipe=spec, accumulate=ACCUMULATE)
            public("load_sharded")(checkpoint, engine)
            key = f"two/{checkpoint.name}/loaded by one process"
            keep(into, key, [model.state_dict(), engine.state_dict()])
            engine.close()


def _one_of_two(rank: int, directory: str) -> None:
    _settle()
    dist.init_process_group(
        "gloo", init_method=f"file://{directory}/store", rank=rank, world_size=2
    )
    into: Record = {}
    for name, spec in all_recipes().items():
        for kind, build in OPTIMIZERS.items():
            if name in OF_ONE_PROCESS or (kind == "adamw" and name not in WITH_ADAMW):
                continue
            settings = {"recipe": spec, "accumulate": ACCUMULATE, "clip_norm": 1.0}
            key = f"two/ddp/{name}/{kind}/rank {rank}"
            try:
                model = net()
                engine = Engine(
                    model,
                    build(model.parameters()),
                    parallel="ddp",
                    sync_batchnorm=kind == "adamw",
                    **settings,
                )
            except (ValueError, TypeError) as error:
                keep(into, key, f"refused: {type(error).__name__}")
            else:
                follow(engine, into, key, rank, 2)
            key = f"two/fsdp/{name}/{kind}/rank {rank}"
            try:
                model = public("shard")(net(), spec, checkpoint_activations=kind == "adamw")
            except (ValueError, TypeError) as error:
                keep(into, key, f"refused: {type(error).__name__}")
                continue
            engine = Engine(model, build(model.parameters()), **settings)
            place = Path(directory) / f"fsdp-{name}-{kind}"
            follow(engine, into, key, rank, 2, partial(public("save_sharded"), place, engine))
    dist.destroy_process_group()
    (Path(directory) / f"{rank}.json").write_text(json.dumps(into))


TRAIN = """
epochs: 1
max_steps: 30
batch_size: 16
accumulate: 2
clip_norm: 1.0
log_every: 1
device: cpu
tracking: []
data: {resolution: 8}
model: {name: "timm:resnet18", args: {layers: [1, 1, 1, 1], channels: [4, 4, 16, 16]}}
optimizer: {name: sgd, lr: 0.05, momentum: 0.9}
schedule: {name: cosine}
"""
OF_A_CHECKPOINT = (
    "model",
    "averaged",
    "engine",
    "schedule",
    "epoch",
    "batch",
    "step",
    "loss",
    "rng",
)


def through_the_trainer(into: Record, names: Iterable[str] = TRAINED, processes: int = 1) -> None:
    """`halfstep train`: metrics and the last checkpoint."""
    from halfstep.cli import main

    for name in names:
        with tempfile.TemporaryDirectory() as directory:
            config, run = Path(directory) / "bitwise.yaml", Path(directory) / "run"
            config.write_text(TRAIN)
            strategy = "fsdp" if processes > 1 and name == "o2" else "ddp"
            options = ["average={decay: 0.9}", f"distributed.strategy={strategy}"]
            before, sys.argv = (
                sys.argv,
                [
                    *("halfstep", "train", str(config), "--quiet", "--recipe", name),
                    *(
                        "--out",
                        str(run),
                        *(part for each in options for part in ("--options", each)),
                    ),
                    *(("--processes", str(processes)) if processes > 1 else ()),
                ],
            )
            _settle()
            try:
                code = _silently(main)
            finally:
                sys.argv = before
            key = f"train/{processes}/{name}"
            keep(into, f"{key}/exit code", code)
            if code not in (0, None):
                continue
            for line in (run / "metrics.jsonl").read_text().splitlines():
                row = json.loads(line)
                row.pop("images_per_second", None)
                keep(into, f"{key}/metrics/{row.pop('kind')}/{row['step']}", row)
            saved = torch.load(run / "checkpoints" / "last.pt", weights_only=True)
            keep(into, f"{key}/checkpoint", {part: saved[part] for part in OF_A_CHECKPOINT})


def _silently(call: Callable[[], Any]) -> Any:
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            return call()
        except SystemExit as end:
            return end.code


def _settle() -> None:
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")  # read when oneDNN is first used
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (checkpoints hold the state of this one)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    warnings.simplefilter("ignore")


def machine() -> dict[str, str]:
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "platform": platform.machine(),
        "onednn": os.environ["ONEDNN_MAX_CPU_ISA"],
    }


def record(*, slow_parts: bool) -> Record:
    into: Record = {}
    parts: dict[str, Callable[[Record], None]] = {
        "one process": one_process,
        "two processes": two_processes,
        "trainer": through_the_trainer,
        "Apex": through_apex,
    }
    if slow_parts:
        others = [name for name in recipes() if name not in TRAINED]
        parts["trainer, other recipes"] = partial(through_the_trainer, names=others)
        parts["trainer in two processes"] = partial(
            through_the_trainer, names=("fp16", "o2"), processes=2
        )
    os.environ["OMP_NUM_THREADS"] = "1"  # of processes that are started
    for name, part in parts.items():
        began = time.perf_counter()
        part(into)
        sys.stdout.write(f"{name}: {time.perf_counter() - began:.0f} s\n")
    return into


def differences(before: Record, now: Record, excepted: str | None) -> list[str]:
    """Say what differs, a line for each key of which all that comes before it is the same."""
    ignored = re.compile(excepted) if excepted else None
    said: dict[str, list[str]] = {}
    for key in [*before, *(key for key in now if key not in before)]:
        was, here = before.get(key, "nothing"), now.get(key, "nothing")
        if was != here and not (ignored and ignored.search(key)):
            said.setdefault("/".join(key.split("/")[:3]), []).append(f"{key}: {was}, now {here}")
    return [
        f"{lines[0]}" + (f" (and {len(lines) - 1} keys after it)" if lines[1:] else "")
        for lines in said.values()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["record", "check"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--slow-parts", action="store_true", help="more of halfstep train")
    parser.add_argument("--except", dest="excepted", metavar="PATTERN", help="keys meant to change")
    given = parser.parse_args()
    _settle()
    if given.command == "record":
        made = {"machine": machine(), "record": record(slow_parts=given.slow_parts)}
        given.file.write_text(json.dumps(made, indent=0))
        sys.stdout.write(f"{len(made['record'])} keys in {given.file}\n")
        return 0
    kept = json.loads(given.file.read_text())
    if kept["machine"] != machine():
        sys.stderr.write(f"{given.file} was made on {kept['machine']}, and this is {machine()}\n")
        return 2
    slow = any(key.startswith("train/2/") for key in kept["record"])
    found = differences(kept["record"], record(slow_parts=slow), given.excepted)
    sys.stdout.write("".join(f"{line}\n" for line in found))
    sys.stdout.write(f"{len(kept['record'])} keys, {len(found) or 'no'} differences\n")
    return 1 if found else 0


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    sys.exit(main())
