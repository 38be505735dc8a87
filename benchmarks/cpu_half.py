"""Half precision on a CPU: fp32, PyTorch's own half kernels and halfstep's, in one run.

The variants take turns step by step, so that whatever else the machine does slows them alike. Each
ratio is of a variant's step to the fp32 step of the same round; slow variants sit most rounds out.
On one thread, the default, times are of the processor rather than the clock: others' work on the
machine does not count.

    python benchmarks/cpu_half.py
    ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 python benchmarks/cpu_half.py --name avx2

The second line measures what a processor without half units does, on one that has them.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import statistics
import time
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import quiet_machine
import timm
import torch
from torch import nn

from halfstep.kernels.cpu_half import cpu_half
from halfstep.kernels.cuda_policy import cuda_autocast_policy

BATCH = 16
MODELS = ("resnet18", "vit_tiny_patch16_224")
FORMATS = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Row:
    """One variant's step beside the fp32 step of the same rounds."""

    model: str
    size: int
    variant: str
    milliseconds: float
    ratio: float
    ratio_low: float
    ratio_high: float
    rounds: int


class Variant:
    """A model of its own and how its step computes."""

    def __init__(self, model: str, size: int, format_: str, how: str, kernels: str) -> None:
        self.name = format_ if format_ == "fp32" else f"{format_} {how}, {kernels}"
        self.ours = kernels == "halfstep"
        self.how = how
        self.dtype = FORMATS.get(format_)
        torch.manual_seed(0)
        options: dict[str, Any] = {"img_size": size, "patch_size": 4} if "vit" in model else {}
        self.model = timm.create_model(model, num_classes=10, **options)
        self.images = torch.randn(BATCH, 3, size, size)
        self.labels = torch.randint(10, (BATCH,))
        if how == "pure" and self.dtype:
            self.model.to(self.dtype)
            self.images = self.images.to(self.dtype)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-3, momentum=0.9)

    def step(self, *, warm: bool) -> float:
        """Return the seconds of one step, after one that does not count where `warm`."""
        with ExitStack() as stack:
            if self.ours:
                stack.enter_context(cpu_half())
                stack.enter_context(cuda_autocast_policy())
            if warm:
                self._step()
            return self._step()

    def _step(self) -> float:
        clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
        start = clock()
        with self._autocast():
            loss = nn.functional.cross_entropy(self.model(self.images), self.labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return clock() - start

    def _autocast(self) -> AbstractContextManager[object]:
        if self.how != "autocast" or self.dtype is None:
            return nullcontext()
        return torch.autocast("cpu", self.dtype)


def measure(model: str, size: int, rounds: int, slow_rounds: int) -> list[Row]:
    """Run the variants of one model in turns."""
    choices = itertools.product(("autocast", "pure"), FORMATS, ("PyTorch", "halfstep"))
    variants = [Variant(model, size, "fp32", "", "")]
    variants += [Variant(model, size, format_, how, kernels) for how, format_, kernels in choices]
    seconds: dict[str, list[float]] = {variant.name: [] for variant in variants}
    ratios: dict[str, list[float]] = {variant.name: [] for variant in variants}
    slow: set[str] = set()
    for number in range(rounds + 1):
        reference = variants[0].step(warm=True)
        for variant in variants:
            if variant.name in slow and number > slow_rounds:
                continue
            taken = (
                reference if variant is variants[0] else variant.step(warm=variant.name not in slow)
            )
            if number:
                seconds[variant.name].append(taken)
                ratios[variant.name].append(taken / reference)
            if not variant.ours and taken > 3 * reference:
                slow.add(variant.name)
    rows = []
    for name, taken_each in seconds.items():
        milliseconds = round(1e3 * statistics.median(taken_each), 1)
        low, middle, high = statistics.quantiles(ratios[name], n=4, method="inclusive")
        spread = round(middle, 2), round(low, 2), round(high, 2)
        rows.append(Row(model, size, name, milliseconds, *spread, rounds=len(taken_each)))
    return rows


def half_units() -> list[str]:
    """Return the half formats that oneDNN has kernels for on this processor."""
    supported = {
        "fp16": torch.ops.mkldnn._is_mkldnn_fp16_supported,  # noqa: SLF001  # no public name
        "bf16": torch.ops.mkldnn._is_mkldnn_bf16_supported,  # noqa: SLF001
    }
    return [name for name, ask in supported.items() if ask()]


def environment() -> dict[str, object]:
    """What the figures hold for."""
    names = ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")
    return {
        "torch": torch.__version__,
        "timm": timm.__version__,
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "half_units": half_units(),
        "variables": {name: os.environ[name] for name in names if name in os.environ},
    }


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--slow-rounds", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--name", help="appended to the name of the results file")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    found = environment()
    print(f"kernels of oneDNN: {', '.join(half_units()) or 'none'} for half units")
    rows: list[Row] = []
    print(f"{'model':22}{'size':>5}  {'step':30}{'ms':>8}{'x fp32':>8}  quartiles")
    for model in MODELS:
        for size in arguments.sizes:
            for row in measure(model, size, arguments.rounds, arguments.slow_rounds):
                spread = f"{row.ratio_low:.2f} to {row.ratio_high:.2f}, {row.rounds} rounds"
                print(
                    f"{model:22}{size:5}  {row.variant:30}{row.milliseconds:8.1f}{row.ratio:8.2f}"
                    f"  {spread}",
                    flush=True,
                )
                rows.append(row)
    stem = "cpu_half" + (f"_{arguments.name}" if arguments.name else "")
    path = Path(__file__).parent / "results" / f"{stem}.json"
    document = {"environment": found, "rows": [asdict(row) for row in rows]}
    quiet_machine.keep(path, document)
    print(f"written to {path}")


if __name__ == "__main__":
    main()
