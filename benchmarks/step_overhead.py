"""What a training step costs beside PyTorch's own loop: the engine, the trainer, and other tools.

Each variant trains in a process of its own, forked from this one, so that no tool's changes of
torch reach another; only one of them works at a time. In a round each takes a turn: a few steps
that do not count, then measured ones, in CPU time on one thread. A ratio is of a variant's turn to
the raw loop's of the same round; given are its median over rounds and its quartiles. All start anew
several times, as where tensors happen to lie in memory makes a step some percent faster or slower.

A step is zeroing, forward, loss, backward, clipping and update of a batch that is there already. Of
the two trainers it is all that lies between a prepared batch and the end of the step: meters, logs,
progress, and, of halfstep's, doctor's watch. Half recipes are measured on the MLP alone: PyTorch's
own half convolutions on a CPU take ten to fifty times fp32's, and nothing else would be seen.
`cpu_half.py` measures those.

    pip install lightning accelerate mmengine     # the peers; those that are missing are left out
    python benchmarks/step_overhead.py            # or a part: --models mlp --settings fp32 bf16

A part replaces its rows in the results, and no others.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docs_table
import quiet_machine
import timm
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import halfstep
from halfstep import Engine, Observer
from halfstep.train.environment import describe

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

RESULTS = Path(__file__).parent / "results" / "step_overhead.json"
ACCUMULATE = 4
CLIP = 1.0
SGD = {"lr": 1e-3, "momentum": 0.9}
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Model:
    """What is trained.

    Attributes:
        name: In timm; "" for the MLP.
        args: Its arguments there.
        pixels: Height and width of an image, which has one channel.
        batch: Images of a batch.
        steps: Measured in a turn.
    """

    name: str
    args: dict[str, Any]
    pixels: int
    batch: int
    steps: int

    def build(self, num_classes: int = 10, in_chans: int = 1) -> nn.Module:
        """Return the model."""
        torch.manual_seed(0)
        if self.name:
            return timm.create_model(
                self.name, num_classes=num_classes, in_chans=in_chans, **self.args
            )
        sizes = (in_chans * self.pixels**2, 128, 64)
        layers = [nn.Linear(*sizes[:2]), nn.ReLU(), nn.Linear(*sizes[1:]), nn.ReLU()]
        return nn.Sequential(nn.Flatten(), *layers, nn.Linear(64, num_classes))


DIGITS_RESNET = {"layers": [1, 1, 1, 1], "channels": [16, 32, 64, 64], "output_stride": 16}
MODELS = {
    "mlp": Model("", {}, 8, 32, 200),
    "digits ResNet": Model("resnet18", DIGITS_RESNET, 24, 32, 8),
    "resnet18, 64 px": Model("resnet18", {}, 64, 16, 1),
}


@dataclass(frozen=True)
class Setting:
    """How it is trained."""

    recipe: str
    clips: bool = False
    accumulates: bool = False

    @property
    def clip(self) -> float | None:
        """Largest norm of the gradients; None where they are not clipped."""
        return CLIP if self.clips else None

    @property
    def micro_steps(self) -> int:
        """Batches to a step."""
        return ACCUMULATE if self.accumulates else 1


SETTINGS = {
    "fp32": Setting("fp32"),
    "fp32, clipping": Setting("fp32", clips=True),
    f"fp32, {ACCUMULATE} micro-steps": Setting("fp32", accumulates=True),
    "bf16": Setting("bf16"),
    "fp16": Setting("fp16"),
    "fp16, clipping": Setting("fp16", clips=True),
    "o2": Setting("o2"),
}


def mlp(num_classes: int, in_chans: int) -> nn.Module:
    """Return the MLP, for configs."""
    return MODELS["mlp"].build(num_classes, in_chans)


class Turns:
    """A variant's end of the pipe: its loop calls `begin` before and `end` after each step."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._left = self._warm = 0
        self._count, self._seconds = 0, 0.0
        self._began = 0.0

    def begin(self) -> None:
        """Wait for the variant's turn, if it is not its turn now; then a step begins."""
        if self._left == 0:
            order = self._conn.recv()
            if order is None:
                # Straight out of whatever loop: nothing that a tool does at its end matters here.
                os._exit(0)
            self._warm, self._count = order
            self._left, self._seconds = self._warm + self._count, 0.0
        self._began = time.process_time()

    def end(self) -> None:
        """End a step."""
        took = time.process_time() - self._began
        if self._left <= self._count:
            self._seconds += took
        self._left -= 1
        if self._left == 0:
            self._conn.send(self._seconds / self._count)


@dataclass(frozen=True)
class Task:
    """What a variant is given."""

    model: Model
    setting: Setting
    turns: Turns

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images and labels."""
        generator = torch.Generator().manual_seed(0)
        shape = (self.model.batch, 1, self.model.pixels, self.model.pixels)
        images = torch.randn(shape, generator=generator)
        return images, torch.randint(10, (self.model.batch,), generator=generator)

    def parts(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Return the model and an optimizer."""
        model = self.model.build()
        return model, torch.optim.SGD(model.parameters(), **SGD)

    def forever(self, step: Callable[[], None]) -> None:
        """Take steps whenever it is the variant's turn."""
        while True:
            self.turns.begin()
            step()
            self.turns.end()


def raw(task: Task) -> None:
    """The loop of PyTorch's documentation."""
    model, optimizer = task.parts()
    images, labels = task.batch()
    setting, count = task.setting, task.setting.micro_steps
    if setting.recipe == "o2":
        return task.forever(_raw_o2(model, images, labels))
    dtype = HALVES.get(setting.recipe)
    scaler = torch.amp.GradScaler("cpu") if setting.recipe == "fp16" else None

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(count):
            with torch.autocast("cpu", dtype) if dtype else contextlib.nullcontext():
                loss = cross_entropy(model(images), labels)
            loss = loss / count if count > 1 else loss
            (scaler.scale(loss) if scaler else loss).backward()
        if setting.clip:
            if scaler:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), setting.clip)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()

    return task.forever(step)


def _raw_o2(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Callable[[], None]:
    """fp16 parameters, fp32 masters and a loss scale, by hand; the MLP has no norm layers."""
    masters = [param.detach().clone().requires_grad_() for param in model.parameters()]
    model.half()
    params = list(model.parameters())
    optimizer = torch.optim.SGD(masters, **SGD)
    scaler = torch.amp.GradScaler("cpu")

    def step() -> None:
        loss = cross_entropy(model(images.half()).float(), labels)
        scaler.scale(loss).backward()
        for master, param in zip(masters, params, strict=True):
            master.grad = param.grad.float()
            param.grad = None
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            torch._foreach_copy_(params, masters)  # what Apex does with its own kernel

    return step


def engine(task: Task) -> None:
    """Halfstep's Engine."""
    model, optimizer = task.parts()
    images, labels = task.batch()
    setting = task.setting
    engine = Engine(
        model,
        optimizer,
        recipe=setting.recipe,
        accumulate=setting.micro_steps,
        clip_norm=setting.clip,
    )

    def step() -> None:
        for _ in range(setting.micro_steps):
            with engine.autocast():
                loss = cross_entropy(engine.model(images), labels)
            engine.backward(loss)
            engine.step()

    task.forever(step)


def fabric(task: Task) -> None:
    """Lightning's Fabric."""
    from lightning.fabric import Fabric
    from lightning.fabric.plugins import MixedPrecision

    setting, count = task.setting, task.setting.micro_steps
    plugins = []
    if setting.recipe == "bf16":
        plugins = [MixedPrecision("bf16-mixed", "cpu")]
    elif setting.recipe == "fp16":
        # Its GradScaler asks for CUDA unless one is given.
        plugins = [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))]
    fabric = Fabric(accelerator="cpu", devices=1, plugins=plugins)
    model, optimizer = fabric.setup(*task.parts())
    images, labels = task.batch()

    def step() -> None:
        optimizer.zero_grad()
        for number in range(count):
            with fabric.no_backward_sync(model, enabled=number + 1 < count):
                loss = cross_entropy(model(images), labels)
                fabric.backward(loss / count if count > 1 else loss)
        if setting.clip:
            fabric.clip_gradients(model, optimizer, max_norm=setting.clip)
        optimizer.step()

    task.forever(step)


def accelerate(task: Task) -> None:
    """Hugging Face's Accelerate; it takes fp16 on a GPU only."""
    from accelerate import Accelerator

    setting = task.setting
    accelerator = Accelerator(
        cpu=True,
        mixed_precision="no" if setting.recipe == "fp32" else setting.recipe,
        gradient_accumulation_steps=setting.micro_steps,
    )
    model, optimizer = accelerator.prepare(*task.parts())
    images, labels = task.batch()

    def step() -> None:
        for _ in range(setting.micro_steps):
            with accelerator.accumulate(model):
                loss = cross_entropy(model(images), labels)
                accelerator.backward(loss)
                if setting.clip and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), setting.clip)
                optimizer.step()
                optimizer.zero_grad()

    task.forever(step)


def mmengine(task: Task) -> None:
    """Mmengine's OptimWrapper; its mixed-precision one needs a GPU."""
    from mmengine.optim import OptimWrapper

    setting = task.setting
    model, optimizer = task.parts()
    images, labels = task.batch()
    wrapper = OptimWrapper(
        optimizer,
        accumulative_counts=setting.micro_steps,
        clip_grad={"max_norm": setting.clip} if setting.clip else None,
    )

    def step() -> None:
        for _ in range(setting.micro_steps):
            with wrapper.optim_context(model):
                loss = cross_entropy(model(images), labels)
            wrapper.update_params(loss)

    task.forever(step)


def lightning(task: Task) -> None:
    """Lightning's Trainer, without logger, checkpoints and progress bar."""
    import lightning as pl

    setting, images_and_labels = task.setting, task.batch()
    model, optimizer = task.parts()

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer

    class Timer(pl.Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            if self.trainer_batches % setting.micro_steps == 0:
                task.turns.begin()

        def on_train_batch_end(self, *_: Any) -> None:
            self.trainer_batches += 1
            if self.trainer_batches % setting.micro_steps == 0:
                task.turns.end()

        trainer_batches = 0

    class Same(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            while True:
                yield images_and_labels

    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=10**9,
        precision="bf16-mixed" if setting.recipe == "bf16" else "32-true",
        gradient_clip_val=setting.clip,
        accumulate_grad_batches=setting.micro_steps,
        callbacks=[Timer()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(Same(), batch_size=None))


class Timed(Observer):
    """Marks the steps of halfstep's trainer."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._open = False

    def batch_prepared(self) -> None:
        """A micro-batch is there; the first of a step begins it."""
        if not self._open:
            self._open = True
            self._task.turns.begin()

    def step_done(self, result: Any) -> None:
        """A step ends."""
        del result
        self._open = False
        self._task.turns.end()


def trainer(task: Task) -> None:
    """`halfstep.train` as it comes: progress, logs, meters, doctor's watch."""
    model, setting = task.model, task.setting
    name = f"timm:{model.name}" if model.name else "import:step_overhead:mlp"
    config = {
        "epochs": 10**6,
        "val_every": 10**6,
        "batch_size": model.batch,
        "accumulate": setting.micro_steps,
        "clip_norm": setting.clip,
        "recipe": setting.recipe,
        "device": "cpu",
        "data": {"name": "digits", "resolution": model.pixels},
        "model": {"name": name, "args": model.args},
        "optimizer": {"name": "sgd", **SGD},
        "schedule": {"name": "constant"},
    }
    with tempfile.TemporaryDirectory() as folder:
        halfstep.train(config, out=Path(folder) / "run", observers=[Timed(task)])


VARIANTS: dict[str, Callable[[Task], None]] = {
    "raw": raw,
    "engine": engine,
    "trainer": trainer,
    "Fabric": fabric,
    "Accelerate": accelerate,
    "mmengine": mmengine,
    "Lightning Trainer": lightning,
}
PACKAGES = {
    "Fabric": "lightning",
    "Accelerate": "accelerate",
    "mmengine": "mmengine",
    "Lightning Trainer": "lightning",
}
REFUSES = {
    "Accelerate": {"fp16", "o2"},
    "mmengine": {"bf16", "fp16", "o2"},
    "Fabric": {"o2"},
    "Lightning Trainer": {"fp16", "o2"},
}
"""Recipes that a tool does not have on a CPU."""


@dataclass(frozen=True)
class Row:
    """A variant's steps beside the raw loop's of the same rounds.

    Attributes:
        microseconds: CPU time of a step, the median over rounds.
        ratio: To the raw loop's of the same round, the median over rounds.
        low: Lower quartile of the ratios.
        high: Upper quartile.
        rounds: How many there were.
    """

    model: str
    setting: str
    variant: str
    microseconds: float
    ratio: float
    low: float
    high: float
    rounds: int


def measure(model: str, setting: str, names: list[str], starts: int, rounds: int) -> list[Row]:
    """Let variants take turns.

    Args:
        model: Name of the model.
        setting: Name of the setting.
        names: The variants; the raw loop is among them.
        starts: How often all of them start anew.
        rounds: Rounds of each start.
    """
    steps = MODELS[model].steps
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(starts):
        ends = {name: _start(name, model, setting) for name in names}
        for number in range(rounds + 1):
            order = names[number % len(names) :] + names[: number % len(names)]
            for name in order:
                _, conn = ends[name]
                conn.send((max(1, steps // 10), steps))
                taken = conn.recv()
                if number:  # the first round warms up
                    seconds[name].append(taken)
        for process, conn in ends.values():
            conn.send(None)
            process.join()
    return [_row(model, setting, name, seconds[name], seconds["raw"]) for name in names]


def _start(name: str, model: str, setting: str) -> tuple[Any, Connection]:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=_run, args=(name, MODELS[model], SETTINGS[setting], there), daemon=True
    )
    process.start()
    there.close()
    return process, here


def _run(name: str, model: Model, setting: Setting, conn: Connection) -> None:
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        VARIANTS[name](Task(model, setting, Turns(conn)))


def _row(model: str, setting: str, name: str, seconds: list[float], raws: list[float]) -> Row:
    ratios = [mine / its for mine, its in zip(seconds, raws, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Row(
        model,
        setting,
        name,
        round(1e6 * statistics.median(seconds), 1),
        round(middle, 3),
        round(low, 3),
        round(high, 3),
        len(ratios),
    )


def variants_of(setting: str, chosen: list[str]) -> list[str]:
    """Return the variants that a setting can be measured with."""
    recipe = SETTINGS[setting].recipe
    able = [name for name in chosen if recipe not in REFUSES.get(name, ())]
    return [name for name in able if name == "raw" or name not in missing(chosen)]


def missing(names: list[str]) -> list[str]:
    """Return the peers that are not installed."""
    return [
        each for each in names if each in PACKAGES and not importlib.util.find_spec(PACKAGES[each])
    ]


def table(record: dict[str, Any]) -> list[str]:
    """Return the docs' table of a record: each variant's ratio to the raw loop."""
    rows = {(each["model"], each["setting"], each["variant"]): each for each in record["rows"]}
    kinds = list(dict.fromkeys((model, setting) for model, setting, _ in rows))
    lines = [f"| step | {' | '.join(VARIANTS)} |", f"| --- |{' --- |' * len(VARIANTS)}"]
    for model, setting in kinds:
        cells = [_cell(rows.get((model, setting, name))) for name in VARIANTS]
        lines.append(f"| {model}, {setting} | {' | '.join(cells)} |")
    return lines


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    if row["variant"] == "raw":
        return f"{row['microseconds'] / 1000:.2f} ms"
    return f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})"


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=12, help="of each start")
    parser.add_argument("--no-write", action="store_true", help="leave the results file alone")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    with quiet_machine.watched() as seen:
        for model in given.models:
            for setting in given.settings:
                if model != "mlp" and SETTINGS[setting].recipe != "fp32":
                    continue
                names = variants_of(setting, ["raw", *(n for n in given.variants if n != "raw")])
                for row in measure(model, setting, names, given.starts, given.rounds):
                    rows.append(row)
                    sys.stdout.write(
                        f"{model:16}{setting:22}{row.variant:18}{row.microseconds:10.1f} us"
                        f"{row.ratio:7.3f}  ({row.low:.3f} to {row.high:.3f})\n"
                    )
                    sys.stdout.flush()
    if given.no_write:
        return
    kept = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    fresh = [asdict(row) for row in rows]
    mine = {(each["model"], each["setting"], each["variant"]) for each in fresh}
    kept = [e for e in kept if (e["model"], e["setting"], e["variant"]) not in mine]
    places = [(m, s, v) for m in MODELS for s in SETTINGS for v in VARIANTS]
    ordered = sorted(
        [*kept, *fresh],
        key=lambda each: places.index((each["model"], each["setting"], each["variant"])),
    )
    record = {
        "environment": describe(torch.device("cpu")),
        "absent": missing(given.variants),
        "rows": ordered,
    }
    quiet_machine.keep(RESULTS, record, seen)
    docs_table.put("performance.md", "step overhead", table(record))


if __name__ == "__main__":
    main()
