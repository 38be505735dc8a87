"""Checks the results and the speed of PyTorch's own half-precision convolutions on this processor.

    python benchmarks/native_half.py [--shapes 2000] [--out native_half.json]

Convolutions of random small shapes run forward and backward in bf16, with PyTorch's kernels and
with `halfstep.cpu_half()`. A result counts as wrong if it is NaN, or if its largest difference to
the result of fp32 on the same inputs is more than 3 % of the largest value; rounding to bf16
changes a value by at most 0.4 %. Before each convolution, memory is filled with NaN and freed, so
that a kernel that reads uninitialised memory returns NaN. For a few layers of usual size, the
script also measures the CPU time relative to fp32.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import time
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import quiet_machine
import torch
from torch.nn.functional import conv2d

from halfstep.kernels.cpu_half import cpu_half

WRONG = 0.03
FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}
RESULTS = ("output", "gradient of the input", "gradient of the weight", "gradient of the bias")
LAYERS = {"16 channels, 8x8, batch 64": (16, 8, 64), "64 channels, 16x16, batch 16": (64, 16, 16)}


def shape(draw: random.Random) -> dict[str, int]:
    """Return a random convolution whose kernel fits its input."""
    while True:
        kernel, groups = draw.choice([1, 2, 3, 5, 7]), draw.choice([1, 1, 1, 2, 4])
        found = {
            "batch": draw.choice([1, 3, 16]),
            "in": groups * draw.choice([1, 2, 3, 4, 8, 16, 17]),
            "out": groups * draw.choice([1, 2, 4, 8, 16, 33]),
            "kernel": kernel,
            "stride": draw.choice([1, 1, 2, 3]),
            "padding": draw.choice([0, kernel // 2]),
            "dilation": draw.choice([1, 1, 1, 2]),
            "height": draw.choice([1, 2, 3, 4, 7, 8, 14]),
            "width": draw.choice([1, 2, 3, 4, 7, 8, 14]),
            "groups": groups,
        }
        reach = found["dilation"] * (kernel - 1) - 2 * found["padding"]
        if min(found["height"], found["width"]) > reach:
            return found


def results(
    tensors: list[torch.Tensor], of: dict[str, int], dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    """Return the output, and the gradients of images, weight and bias."""
    junk = [torch.full((size,), torch.nan) for size in (64, 1024, 4096, 65536)]
    del junk
    inputs = [each.to(dtype).requires_grad_() for each in tensors]
    images, weight, bias = inputs
    output = conv2d(images, weight, bias, of["stride"], of["padding"], of["dilation"], of["groups"])
    return output, *torch.autograd.grad(output, inputs, torch.ones_like(output))


def wrong(shapes: int, seed: int) -> dict[str, Any]:
    """Count the results that differ from those of fp32."""
    draw = random.Random(seed)  # noqa: S311  # shapes, no secrets
    torch.manual_seed(seed)
    counts: Counter[str] = Counter()
    examples: dict[str, dict[str, int]] = {}
    for _ in range(shapes):
        of = shape(draw)
        tensors = [
            torch.randn(of["batch"], of["in"], of["height"], of["width"]),
            torch.randn(of["out"], of["in"] // of["groups"], of["kernel"], of["kernel"]) / 10,
            torch.randn(of["out"]),
        ]
        tensors = [each.bfloat16().float() for each in tensors]
        exact = results(tensors, of, torch.float32)
        for kernels, context in (("PyTorch", nullcontext()), ("halfstep", cpu_half())):
            with context:
                found = results(tensors, of, torch.bfloat16)
            for name, ours, theirs in zip(RESULTS, found, exact, strict=True):
                distance = (ours.float() - theirs).detach().abs().max()
                if not float(distance / theirs.detach().abs().max().clamp_min(1e-3)) < WRONG:
                    key = f"bf16, {kernels}: {name}"
                    counts[key] += 1
                    examples.setdefault(key, of)
    return {"shapes": shapes, "wrong": dict(counts), "examples": examples}


def seconds(layer: tuple[int, int, int], dtype: torch.dtype, how: AbstractContextManager) -> float:
    """Return the CPU time of one forward and backward of two convolutions."""
    channels, size, batch = layer
    images = torch.randn(batch, channels, size, size, dtype=dtype, requires_grad=True)
    weights = torch.randn(channels, channels, 3, 3, dtype=dtype, requires_grad=True)
    start = time.process_time()
    with how:
        conv2d(conv2d(images, weights, padding=1).relu(), weights, padding=1).sum().backward()
    return time.process_time() - start


def speeds(rounds: int) -> dict[str, dict[str, float]]:
    """Return the median ratio to the time of fp32 in the same round, by layer and kernels."""
    found: dict[str, dict[str, float]] = {}
    for title, layer in LAYERS.items():
        ratios: dict[str, list[float]] = {}
        for number in range(rounds + 1):
            single = seconds(layer, torch.float32, nullcontext())
            for format_, dtype in FORMATS.items():
                for kernels, how in (("PyTorch", nullcontext()), ("halfstep", cpu_half())):
                    taken = seconds(layer, dtype, how)
                    if number:
                        ratios.setdefault(f"{format_}, {kernels}", []).append(taken / single)
        found[title] = {name: round(statistics.median(each), 2) for name, each in ratios.items()}
    return found


def processor() -> str:
    """Return the name of the processor."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main() -> None:
    """Count, time, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="native_half.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    document = {
        "environment": {
            "torch": torch.__version__,
            "processor": processor(),
            "vector_instructions": torch.backends.cpu.get_cpu_capability(),
            "onednn_max_cpu_isa": os.environ.get("ONEDNN_MAX_CPU_ISA", ""),
            "threads": 1,
        },
        "convolutions": wrong(arguments.shapes, arguments.seed),
        "time_over_fp32": speeds(arguments.rounds),
    }
    quiet_machine.keep(Path(__file__).parent / "results" / arguments.out, document)


if __name__ == "__main__":
    main()
