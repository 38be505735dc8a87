"""Compressed activations beside activation checkpointing: bytes, time, and what gradients lose.

    python benchmarks/activations.py [--models resnet18,resnet50,vit_small] [--out activations.json]

For each model, under each way of keeping activations:

- bytes: what autograd holds for the backward pass when the forward pass is over, without
  parameters and their casts, each storage once. Counted through saved-tensor hooks, under fp16
  autocast and under fp32; beside it, what PyTorch's profiler saw allocated and not freed in the
  same forward pass.
- time: processor time of a training step over that without compression in the same round, in one
  thread, as median, smallest and largest of the rounds.
- gradients: cosine to the exact one, and bias: the squared distance of the mean of several draws
  from the exact gradient, over what chance alone makes of it (1 where it is right on average).

And for each number of bits, the bandwidth of packing and unpacking over that of a copy.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import timm
import torch
from native_half import processor
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cosine_similarity, cross_entropy
from torch.profiler import ProfilerActivity, profile

from halfstep import Engine
from halfstep.kernels.packing import BITS, Draw, pack
from halfstep.techniques.activations.store import Saved, Store, Whole, is_parameter

if TYPE_CHECKING:
    from collections.abc import Iterator

MODELS = {
    "resnet18": ("resnet18", {}, 16, 64),
    "resnet50": ("resnet50", {}, 4, 128),
    "vit_small": ("vit_small_patch16_224", {"img_size": 112}, 4, 112),
}
"""timm's name, what it is made with, images in a batch and their size."""

WAYS = ("exact", "act8", "act4", "act3", "act2", "checkpointing", "checkpointing and act4")
DRAWS = 8


class Case:
    """One model under one way of keeping activations."""

    def __init__(self, title: str, way: str, base: str) -> None:
        name, options, batch, size = MODELS[title]
        torch.manual_seed(0)
        self.model: nn.Module = timm.create_model(name, **options)
        if "checkpointing" in way:
            self.model.set_grad_checkpointing(True)
        bits = next((word for word in way.split() if word.startswith("act")), None)
        self.compresses = bits is not None
        recipe = f"{base}+{bits}" if bits else base
        self.engine = Engine(
            self.model, torch.optim.SGD(self.model.parameters(), lr=0), recipe=recipe
        )
        self.images = torch.randn(batch, 3, size, size)
        self.labels = torch.randint(0, 1000, (batch,))

    def forward(self) -> torch.Tensor:
        """Return the loss."""
        with self.engine.autocast():
            return cross_entropy(self.engine.model(self.images).float(), self.labels)

    def gradient(self) -> torch.Tensor:
        """Return the gradients of all parameters, `[parameters]`."""
        self.engine.backward(self.forward())
        found = torch.cat([p.grad.flatten() for p in self.model.parameters()]).double()
        self.engine.step()
        return found

    def step_seconds(self) -> float:
        """Return the processor time of a step."""
        start = time.thread_time()
        self.engine.backward(self.forward())
        self.engine.step()
        return time.thread_time() - start

    def close(self) -> None:
        """Give back what the engine holds."""
        self.engine.close()


@contextmanager
def parameters_noted(case: Case) -> Iterator[set[int]]:
    """Note where parameters lie that are saved, and their casts."""
    tensors = (*case.model.parameters(), *case.model.buffers())
    places = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    save = Store.save

    def noting(store: Store, tensor: torch.Tensor) -> Any:
        if is_parameter(tensor):
            places.add(tensor.untyped_storage().data_ptr())
        return save(store, tensor)

    with patch.object(Store, "save", noting):
        yield places


@contextmanager
def listed(places: set[int]) -> Iterator[list[torch.Tensor]]:
    """Note every tensor that autograd saves where nothing is compressed."""
    found: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if is_parameter(tensor):
            places.add(tensor.untyped_storage().data_ptr())
        found.append(tensor.detach())
        return found[-1]

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        yield found


def held(case: Case) -> dict[str, int]:
    """Return the bytes that the backward pass waits with, by hooks and by the allocator.

    The allocator's include casts of parameters, which autocast makes anew in each forward pass.
    """
    events = [ProfilerActivity.CPU]
    with parameters_noted(case) as places, profile(activities=events, profile_memory=True) as seen:
        if case.compresses:
            loss = case.forward()
            tensors = [tensor for kept in compressed() for tensor in kept]
        else:
            with listed(places) as tensors:
                loss = case.forward()
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
    counted = sum(each.nbytes() for place, each in storages.items() if place not in places)
    allocated = sum(event.self_cpu_memory_usage for event in seen.key_averages())
    case.engine.backward(loss)
    case.engine.step()
    return {"hooks": counted, "allocator": int(allocated)}


def compressed() -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the tensors of everything that is kept now."""
    gc.collect()
    for each in gc.get_objects():
        if type(each) is Whole:
            yield (each.tensor,)
        elif type(each) is Saved:
            packed = each.kept.packed
            yield (packed.codes, packed.low, packed.step) if packed else (each.kept.whole.tensor,)


def gradients(title: str) -> dict[str, dict[str, float]]:
    """Return how far the gradients of each way are from exact ones."""
    case = Case(title, "exact", "fp32")
    exact = case.gradient()
    case.close()
    found = {}
    for way in (f"act{bits}" for bits in reversed(BITS)):
        case = Case(title, way, "fp32")
        draws = torch.stack([case.gradient() for _ in range(DRAWS)])
        case.close()
        by_chance = draws.var(0).sum() / DRAWS
        found[way] = {
            "cosine": round(
                statistics.mean(float(cosine_similarity(d, exact, 0)) for d in draws), 4
            ),
            "cosine_of_mean": round(float(cosine_similarity(draws.mean(0), exact, 0)), 4),
            "bias": round(float((draws.mean(0) - exact).square().sum() / by_chance), 3),
        }
    return found


def times(title: str, rounds: int) -> dict[str, dict[str, float]]:
    """Return each way's time over the exact one's in the same round."""
    cases = {way: Case(title, way, "fp32") for way in WAYS}
    ratios: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds + 1):
        taken = {way: case.step_seconds() for way, case in cases.items()}
        if number:
            for way in WAYS:
                ratios[way].append(taken[way] / taken["exact"])
    for case in cases.values():
        case.close()
    return {
        way: {
            "median": round(statistics.median(each), 3),
            "smallest": round(min(each), 3),
            "largest": round(max(each), 3),
        }
        for way, each in ratios.items()
    }


def bandwidths(rounds: int) -> dict[str, dict[str, float]]:
    """Return the bandwidth of packing and unpacking over that of a copy, in one thread."""
    found: dict[str, dict[str, float]] = {}
    for dtype in (torch.float32, torch.float16):
        values = torch.randn(64 * 2**20 // 4).to(dtype)
        target = torch.empty_like(values)
        shares: dict[int, list[float]] = {bits: [] for bits in BITS}
        for _ in range(rounds):
            start = time.thread_time()
            target.copy_(values)
            copying = 2 * values.nbytes / (time.thread_time() - start)
            for bits in BITS:
                start = time.thread_time()
                packed = pack(values, bits, draw=Draw(1))
                packed.unpack()
                moved = 2 * (values.nbytes + packed.nbytes)
                shares[bits].append(moved / (time.thread_time() - start) / copying)
        name = str(dtype).removeprefix("torch.")
        found[name] = {f"{bits} bits": round(statistics.median(s), 3) for bits, s in shares.items()}
    return found


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", default="activations.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    document: dict[str, Any] = {
        "environment": {
            "torch": torch.__version__, "timm": timm.__version__, "processor": processor(),
            "threads": 1, "draws": DRAWS, "rounds": arguments.rounds,
        },
        "share_of_copy_bandwidth": bandwidths(arguments.rounds),
        "models": {},
    }  # fmt: skip
    for title in arguments.models.split(","):
        kept: dict[str, dict[str, Any]] = {}
        for base in ("fp32", "fp16"):
            for way in WAYS:
                case = Case(title, way, base)
                kept.setdefault(base, {})[way] = held(case)
                case.close()
        fp16 = kept["fp16"]["exact"]["hooks"]
        fp32 = kept["fp32"]["exact"]["hooks"]
        document["models"][title] = {
            "batch": MODELS[title][2],
            "pixels": MODELS[title][3],
            "bytes": kept,
            "times_less_than_fp16": {
                way: round(fp16 / each["hooks"], 2) for way, each in kept["fp16"].items()
            },
            "times_less_than_fp32": {
                way: round(fp32 / each["hooks"], 2) for way, each in kept["fp16"].items()
            },
            "time_over_exact": times(title, arguments.rounds),
            "gradients": gradients(title),
        }
        print(title, json.dumps(document["models"][title], indent=2), flush=True)
    path = Path(__file__).parent / "results" / arguments.out
    path.write_text(json.dumps(document, indent=2) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
