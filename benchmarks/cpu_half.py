"""Compares half precision on a CPU with fp32 and with PyTorch's own half-precision kernels.

Each recipe takes steps of an `Engine`, as in the trainer. PyTorch's own steps use the same formats:
autocast, with a `GradScaler` for fp16, and `model.half()` or `.bfloat16()`. PyTorch has no
counterpart of o2, or of the rounding of bf16-sr. Products are single operators, forward and
backward, with the sizes of small layers.

    python benchmarks/cpu_half.py                                # or a part: --models products
    ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 python benchmarks/cpu_half.py --name avx2

A part only replaces its own rows in the results. On a processor with half-precision units, the
second line measures the speed without them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docs_table
import in_turns
import quiet_machine
import timm
import torch
from torch import nn
from torch.nn.functional import conv2d, cross_entropy, linear

from halfstep import Engine
from halfstep.kernels.cpu_half import cpu_half
from halfstep.kernels.native.memory import freed_memory_kept
from halfstep.train.environment import describe

if TYPE_CHECKING:
    from collections.abc import Callable

HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}
SGD = {"lr": 1e-3, "momentum": 0.9, "nesterov": True, "weight_decay": 2e-3}


@dataclass(frozen=True)
class Model:
    """A model with the size of its batches.

    Attributes:
        pixels: Height and width of an image.
        channels: Channels of an image.
        batch: Images in a batch.
        steps: Steps in a turn.
        args: Arguments of timm's resnet18.
    """

    pixels: int
    channels: int
    batch: int
    steps: int
    args: dict[str, Any] = field(default_factory=dict)

    def build(self) -> nn.Module:
        """Return the model."""
        torch.manual_seed(0)
        return timm.create_model("resnet18", num_classes=10, in_chans=self.channels, **self.args)

    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a batch of images and labels."""
        generator = torch.Generator().manual_seed(0)
        shape = self.batch, self.channels, self.pixels, self.pixels
        images = torch.randn(shape, generator=generator)
        return images, torch.randint(10, (self.batch,), generator=generator)


SMALL = {"layers": [1, 1, 1, 1], "channels": [16, 32, 64, 64], "output_stride": 16}
MODELS = {
    "digits ResNet": Model(24, 1, 32, 8, SMALL),
    "resnet18, 32 px": Model(32, 3, 16, 2),
    "resnet18, 64 px": Model(64, 3, 16, 1),
}
RECIPES = ("fp32", "fp16", "bf16", "o2", "half", "bf16-sr")
LARGEST_OF_TORCH = 32
"""Most pixels for which PyTorch's own fp16 is measured, because larger steps take many seconds."""
PRODUCTS = "products"
HELD = contextlib.ExitStack()
"""The contexts that stay active until the process of a variant ends."""


def recipe(model: Model, name: str) -> Callable[[], None]:
    """Return a function that takes a step of an engine."""
    net = model.build()
    images, labels = model.data()
    engine = Engine(net, torch.optim.SGD(net.parameters(), **SGD), recipe=name)
    HELD.enter_context(freed_memory_kept())  # as the trainer does

    def step() -> None:
        with engine.autocast():
            loss = cross_entropy(engine.model(images), labels)
        engine.backward(loss)
        engine.step()

    return step


def autocast(model: Model, format_: str) -> Callable[[], None]:
    """Return a step with PyTorch's autocast."""
    net = model.build()
    images, labels = model.data()
    optimizer = torch.optim.SGD(net.parameters(), **SGD)
    scaler = torch.amp.GradScaler("cpu", enabled=format_ == "fp16")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", HALVES[format_]):
            loss = cross_entropy(net(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def pure(model: Model, format_: str) -> Callable[[], None]:
    """Return a step with parameters and images in a half format, by PyTorch's kernels."""
    net = model.build().to(HALVES[format_])
    images, labels = model.data()
    images = images.to(HALVES[format_])
    optimizer = torch.optim.SGD(net.parameters(), **SGD)

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(net(images), labels).backward()
        optimizer.step()

    return step


PEERS = {
    "PyTorch fp16 autocast": partial(autocast, format_="fp16"),
    "PyTorch bf16 autocast": partial(autocast, format_="bf16"),
    "PyTorch fp16 parameters": partial(pure, format_="fp16"),
    "PyTorch bf16 parameters": partial(pure, format_="bf16"),
}


def _mm() -> tuple[Any, list[torch.Tensor]]:
    return torch.mm, [torch.randn(32, 64), torch.randn(64, 128)]


def _linear() -> tuple[Any, list[torch.Tensor]]:
    return linear, [torch.randn(32, 64), torch.randn(10, 64), torch.randn(10)]


def _conv() -> tuple[Any, list[torch.Tensor]]:
    return conv2d, [torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)]


def _smallest() -> tuple[Any, list[torch.Tensor]]:
    return torch.mm, [torch.randn(8, 8), torch.randn(8, 8)]


def _smallest_linear() -> tuple[Any, list[torch.Tensor]]:
    return linear, [torch.randn(8, 8), torch.randn(8, 8), torch.randn(8)]


OPERATORS = {
    "mm 32x64x128": _mm,
    "linear 32x64x10": _linear,
    "conv 2x3x8x8, 4 of 3x3": _conv,
    "mm 8x8x8": _smallest,
    "linear 8x8x8": _smallest_linear,
}


def product(operator: str, format_: str, *, ours: bool) -> Callable[[], None]:
    """Return a function that computes a product of half tensors, and its backward."""
    torch.manual_seed(0)
    function, factors = OPERATORS[operator]()
    leaves = [each.to(HALVES[format_]).requires_grad_() for each in factors]
    if ours:
        HELD.enter_context(cpu_half())
    cotangent = torch.ones_like(function(*leaves))

    def step() -> None:
        torch.autograd.grad(function(*leaves), leaves, cotangent)

    return step


def steps_of(model: str, rounds: int) -> list[dict[str, Any]]:
    """Measure the recipes and PyTorch's own steps of a model."""
    its = MODELS[model]
    variants = {name: partial(recipe, its, name) for name in RECIPES}
    variants |= {
        name: partial(start, its)
        for name, start in PEERS.items()
        if "fp16" not in name or its.pixels <= LARGEST_OF_TORCH
    }
    found = in_turns.measure(variants, "fp32", steps=its.steps, rounds=rounds)
    return [{"of": model, "variant": name, **asdict(turns)} for name, turns in found.items()]


def products(rounds: int) -> list[dict[str, Any]]:
    """Measure single products; the reference is PyTorch's own kernel."""
    rows = []
    for operator in OPERATORS:
        for format_ in HALVES:
            of = f"{operator}, {format_}"
            variants = {
                name: partial(product, operator, format_, ours=name == "halfstep")
                for name in ("PyTorch", "halfstep")
            }
            found = in_turns.measure(variants, "PyTorch", steps=300, rounds=rounds)
            rows += [{"of": of, "variant": name, **asdict(each)} for name, each in found.items()]
    return rows


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the table of the docs: the time of each step relative to fp32."""
    found = {(row["of"], row["variant"]): row for row in rows}
    models = [name for name in MODELS if (name, "fp32") in found]
    lines = [f"| step | {' | '.join(models)} |", f"| --- |{' --- |' * len(models)}"]
    for variant in (*RECIPES, *PEERS):
        cells = [_cell(found.get((model, variant)), variant) for model in models]
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    return lines


def products_table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the table of the docs: the time of each product relative to PyTorch's own kernel."""
    found = {row["of"]: row for row in rows if row["variant"] == "halfstep"}
    lines = [f"| product | {' | '.join(HALVES)} |", f"| --- |{' --- |' * len(HALVES)}"]
    for operator in OPERATORS:
        cells = [_cell(found.get(f"{operator}, {each}"), "halfstep") for each in HALVES]
        lines.append(f"| {operator} | {' | '.join(cells)} |")
    return lines


def _cell(row: dict[str, Any] | None, variant: str) -> str:
    if row is None:
        return "-"
    if variant == "fp32":
        return f"{row['milliseconds']:.0f} ms"
    return f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})"


def half_units() -> list[str]:
    """Return the half formats that oneDNN has kernels for on this processor."""
    supported = {
        "fp16": torch.ops.mkldnn._is_mkldnn_fp16_supported,  # noqa: SLF001  # no public name
        "bf16": torch.ops.mkldnn._is_mkldnn_bf16_supported,  # noqa: SLF001
    }
    return [name for name, ask in supported.items() if ask()]


def environment() -> dict[str, object]:
    """Return the facts about the machine on which the figures depend."""
    names = ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")
    return {
        **describe(torch.device("cpu")),
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "half_units": half_units(),
        "variables": {name: os.environ[name] for name in names if name in os.environ},
    }


def main() -> None:
    """Measure, print and write the results."""
    every = [*MODELS, PRODUCTS]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=every, choices=every)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--name", help="appended to the name of the results file")
    given = parser.parse_args()
    rows = []
    for name in given.models:
        rows += products(given.rounds) if name == PRODUCTS else steps_of(name, given.rounds)
        for row in rows:
            sys.stdout.write(
                f"{row['of']:28}{row['variant']:26}{row['milliseconds']:10.3f} ms"
                f"{row['ratio']:8.3f}  ({row['low']:.3f} to {row['high']:.3f})\n"
            )
    stem = "cpu_half" + (f"_{given.name}" if given.name else "")
    path = Path(__file__).parent / "results" / f"{stem}.json"
    kept = json.loads(path.read_text())["rows"] if path.exists() else []
    fresh = {row["of"] for row in rows}
    rows = [*(row for row in kept if row.get("of") not in fresh and "of" in row), *rows]
    places = [*MODELS]
    rows.sort(key=lambda row: places.index(row["of"]) if row["of"] in places else len(places))
    quiet_machine.keep(path, {"environment": environment(), "rows": rows})
    if not given.name:
        docs_table.put("performance.md", "half on a CPU", table(rows))
        docs_table.put("performance.md", "products", products_table(rows))


if __name__ == "__main__":
    main()
