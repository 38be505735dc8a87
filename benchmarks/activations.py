"""Compares compressed activations with activation checkpointing: bytes, time and gradient errors.

    python benchmarks/activations.py [--models resnet18,resnet50,vit_small] [--out activations.json]
        [--parts bandwidth,bytes,gradients,times]

Parts that are not selected stay unchanged in the file. For each model and each way of saving
activations, the script measures:

- bytes: the memory that autograd holds for the backward pass after the forward pass, without
  parameters and their casts; each storage counts once. It is counted with saved-tensor hooks, under
  fp16 autocast and under fp32. As a check, the increase of the memory that malloc has in use,
  without the casts, must be the same up to 2 % or 1 MB (it also contains statistics of norm layers,
  nodes of the graph, and whole pages). One ratio is to the bytes of fp32, as in ActNN's accounting.
- gradients: cosine is the cosine similarity to the exact gradient. noise is the variance of the
  gradients over the squared norm of the exact one. bias is the squared distance between the mean of
  several draws and the exact gradient, over its expected value from chance alone (1 for a gradient
  that is right on average). A budget with the same bytes as 3 bits shows the benefit of choosing
  the bits per layer.
- times: the processor time of a training step over that without compression in the same round, on
  one thread: median, smallest and largest of the rounds. Each round runs each way once.

For each number of bits, the script also measures the bandwidth of packing and unpacking (bytes that
both read and write, over their time), relative to that of a copy (bytes read and written). The
process already has all memory that these write to.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import statistics
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import quiet_machine
import timm
import torch
from native_half import processor
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cosine_similarity, cross_entropy

from halfstep import Engine
from halfstep.mechanisms.activations.packing import BITS, Draw, pack
from halfstep.mechanisms.activations.store import Saved, Store, Whole, is_parameter

if TYPE_CHECKING:
    from collections.abc import Iterator

MODELS = {
    "resnet18": ("resnet18", {}, 16, 64),
    "resnet50": ("resnet50", {}, 4, 128),
    "vit_small": ("vit_small_patch16_224", {"img_size": 112}, 4, 112),
}
"""The name in timm, the arguments of the model, the images in a batch and their size in pixels."""

BUDGETS = {"resnet18": 0.2, "resnet50": 0.2, "vit_small": 0.3}
"""Budgets as a share of the exact bytes.

vit_small has a larger one: a fifth is less than 2 bits need, because attention keeps half of its
bytes uncompressed.
"""

WAYS = (
    "exact", "act8", "act4", "act3", "act2", "budget", "checkpointing", "checkpointing and act2",
)  # fmt: skip
PARTS = ("bandwidth", "bytes", "gradients", "times")
DRAWS = 8
TOLERANCE = 0.02, 10**6
"""The largest difference between the bytes of malloc and of the hooks: relative, or in bytes."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # mallopt(3)


class Case:
    """A model with one way of saving activations.

    Args:
        title: A key of `MODELS`.
        way: One of `WAYS`.
        base: The recipe without compression.
        budget: For the way "budget", the share of the exact bytes; default: that of `BUDGETS`.
    """

    def __init__(self, title: str, way: str, base: str, budget: float | None = None) -> None:
        name, options, batch, size = MODELS[title]
        torch.manual_seed(0)
        self.model: nn.Module = timm.create_model(name, **options)
        if "checkpointing" in way:
            self.model.set_grad_checkpointing(True)
        bits = next((word for word in way.split() if word.startswith("act")), None)
        self.compresses = bits is not None or way == "budget"
        recipe: Any = f"{base}+{bits}" if bits else base
        if way == "budget":
            recipe = {"base": base, "activation_budget": budget or BUDGETS[title]}
        self.engine = Engine(
            self.model, torch.optim.SGD(self.model.parameters(), lr=0), recipe=recipe
        )
        self.images = torch.randn(batch, 3, size, size)
        self.labels = torch.randint(0, 1000, (batch,))
        if way == "budget":  # the bits are chosen in the first step without an overflow
            while not self.engine.state_dict()["techniques"]["BudgetedActivations"]["chosen"]:
                self.step_seconds()

    def forward(self) -> torch.Tensor:
        """Return the loss."""
        with self.engine.autocast():
            return cross_entropy(self.engine.model(self.images).float(), self.labels)

    def gradient(self) -> torch.Tensor:
        """Take a step, and return the gradients of all parameters, flattened to one vector."""
        self.engine.backward(self.forward())
        found = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        self.engine.step()
        return found

    def step_seconds(self) -> float:
        """Take a step, and return its processor time."""
        start = time.thread_time()
        self.engine.backward(self.forward())
        self.engine.step()
        return time.thread_time() - start

    def tensors(self) -> list[torch.Tensor]:
        """Return parameters and buffers."""
        return [*self.model.parameters(), *self.model.buffers()]

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()


@contextmanager
def parameters_noted(case: Case) -> Iterator[set[int]]:
    """Yield a set that collects the addresses of parameters and of their casts that are saved."""
    places = {tensor.untyped_storage().data_ptr() for tensor in case.tensors()}
    save = Store.save

    def noting(store: Store, tensor: torch.Tensor) -> Any:
        if is_parameter(tensor):
            places.add(tensor.untyped_storage().data_ptr())
        return save(store, tensor)

    with patch.object(Store, "save", noting):
        yield places


@contextmanager
def listed(places: set[int]) -> Iterator[list[torch.Tensor]]:
    """Yield a list that collects each tensor that autograd saves, if nothing is compressed."""
    found: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if is_parameter(tensor):
            places.add(tensor.untyped_storage().data_ptr())
        found.append(tensor.detach())
        return found[-1]

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        yield found


class MallocFigures(ctypes.Structure):
    """`struct mallinfo2` of the GNU C library (2.33 and newer), mallinfo(3)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    ]  # fmt: skip


def in_use() -> int:
    """Return the bytes that are allocated with malloc, which include PyTorch's storages."""
    gc.collect()
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = MallocFigures
    figures = mallinfo2()
    return int(figures.uordblks + figures.hblkhd)


def held(case: Case) -> dict[str, int]:
    """Return the bytes that are held for the backward pass, by the hooks and by malloc.

    Raises:
        RuntimeError: If the two numbers differ by more than `TOLERANCE`.
    """
    case.step_seconds()  # the first step also allocates memory that stays
    params = {each.untyped_storage().data_ptr() for each in case.tensors()}
    with parameters_noted(case) as places:
        before = in_use()
        if case.compresses:
            loss = case.forward()
            tensors = [tensor for kept in compressed() for tensor in kept]
        else:
            with listed(places) as tensors:
                loss = case.forward()
        live = in_use() - before
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
    sizes = {place: each.nbytes() for place, each in storages.items() if place not in params}
    casts = sum(size for place, size in sizes.items() if place in places)
    counted = sum(sizes.values()) - casts
    live += sizes.get(case.images.untyped_storage().data_ptr(), 0)  # allocated before, and saved
    case.engine.backward(loss)
    case.engine.step()
    share, least = TOLERANCE
    if abs(live - casts - counted) > max(share * counted, least):
        raise RuntimeError(f"hooks count {counted} bytes and {casts} of casts, malloc {live}")
    return {"hooks": counted, "live": live - casts}


def compressed() -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the tensors of each activation that halfstep holds now."""
    gc.collect()
    for each in gc.get_objects():
        if type(each) is Whole:
            yield (each.tensor,)
        elif type(each) is Saved:
            packed = each.kept.packed
            yield (packed.stored,) if packed else (each.kept.whole.tensor,)


def gradients(title: str) -> dict[str, dict[str, float]]:
    """Return the bytes of each way, and the errors of its gradients."""
    case = Case(title, "exact", "fp32")
    exact = case.gradient()
    exact_bytes = held(case)["hooks"]
    case.close()
    of_exact = float(exact.double().square().sum())
    found: dict[str, dict[str, float]] = {}
    ways: dict[str, float | None] = dict.fromkeys(("act8", "act4", "act3", "act2", "budget"))
    for way in (*ways, "budget of act3's bytes"):
        if way not in ways:
            ways[way] = found["act3"]["bytes"] / exact_bytes
        case = Case(title, way.split(" of ")[0], "fp32", ways[way])
        kept = held(case)["hooks"]
        total, squares, cosines = torch.zeros_like(exact), 0.0, []
        for _ in range(DRAWS):
            draw = case.gradient()
            total += draw
            squares += float(draw.double().square().sum())
            cosines.append(_cosine(draw, exact))
        case.close()
        mean = total / DRAWS
        variance = (squares - DRAWS * float(mean.double().square().sum())) / (DRAWS - 1)
        off = float((mean - exact).double().square().sum())
        found[way] = {
            "bytes": kept,
            "cosine": round(statistics.mean(cosines), 4),
            "cosine_of_mean": round(_cosine(mean, exact), 4),
            "noise": float(f"{variance / of_exact:.3g}"),
            "bias": round(off / (variance / DRAWS), 3),
        }
    return found


def _cosine(first: torch.Tensor, second: torch.Tensor) -> float:
    # In float64, because a sum of millions of products in fp32 has an error in the third digit.
    return float(cosine_similarity(first.double(), second.double(), 0))


def times(title: str, rounds: int) -> dict[str, dict[str, float]]:
    """Return the time of a step of each way over that of the exact one in the same round."""
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
    """Return the bandwidth of packing and unpacking over that of a copy, on one thread.

    malloc keeps freed memory here, so that packing writes to pages that the process already has, as
    the copy does.
    """
    for parameter in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
        ctypes.CDLL(None).mallopt(parameter, 2**30)
    found: dict[str, dict[str, float]] = {}
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        values = torch.randn(2**22).to(dtype)
        target = torch.empty_like(values)
        shares: dict[int, list[float]] = {bits: [] for bits in BITS}
        copies = []
        for number in range(2 * rounds + 1):
            start = time.thread_time()
            target.copy_(values)
            copying = 2 * values.nbytes / (time.thread_time() - start)
            for bits in BITS:
                start = time.thread_time()
                packed = pack(values, bits, draw=Draw(1))
                packed.unpack()
                moved = 2 * (values.nbytes + packed.nbytes)
                shares[bits].append(moved / (time.thread_time() - start) / copying)
            copies.append(copying)
            if not number:  # the first round allocates the memory, and does not count
                shares, copies = {bits: [] for bits in BITS}, []
        name = str(dtype).removeprefix("torch.")
        found[name] = {f"{bits} bits": round(statistics.median(s), 3) for bits, s in shares.items()}
        found[name]["copy, GB/s"] = round(statistics.median(copies) / 1e9, 1)
    return found


def bytes_kept(title: str) -> dict[str, Any]:
    """Return the bytes that each way holds, and by which factor that is less than without it."""
    kept: dict[str, dict[str, Any]] = {}
    for base in ("fp32", "fp16"):
        for way in WAYS:
            case = Case(title, way, base)
            kept.setdefault(base, {})[way] = held(case)
            case.close()
    under_fp16 = {way: each["hooks"] for way, each in kept["fp16"].items()}
    return {
        "bytes": kept,
        "times_less_than_fp16": _shares(kept["fp16"]["exact"]["hooks"], under_fp16),
        "times_less_than_fp32_as_actnn_counts": _shares(kept["fp32"]["exact"]["hooks"], under_fp16),
    }


def _shares(exact: int, kept: dict[str, int]) -> dict[str, float]:
    return {way: round(exact / each, 2) for way, each in kept.items()}


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", default="activations.json")
    arguments = parser.parse_args()
    parts = arguments.parts.split(",")
    if set(parts) - set(PARTS):
        parser.error(f"--parts is {arguments.parts}; allowed: {', '.join(PARTS)}")
    torch.set_num_threads(1)
    path = Path(__file__).parent / "results" / arguments.out
    document: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"models": {}}
    document["environment"] = {
        "torch": torch.__version__, "timm": timm.__version__, "processor": processor(),
        "threads": 1, "draws": DRAWS, "rounds": arguments.rounds, "budgets": BUDGETS,
    }  # fmt: skip

    def keep(part: str, found: Any) -> None:
        print(part, json.dumps(found, indent=2), flush=True)
        quiet_machine.keep(path, document)

    if "bandwidth" in parts:
        document["share_of_copy_bandwidth"] = bandwidths(arguments.rounds)
        keep("share of copy bandwidth", document["share_of_copy_bandwidth"])
    for title in arguments.models.split(","):
        row = document["models"].setdefault(title, {})
        row["batch"], row["pixels"] = MODELS[title][2:]
        if "bytes" in parts:
            row.update(bytes_kept(title))
        if "gradients" in parts:
            row["gradients"] = gradients(title)
        if "times" in parts:
            row["time_over_exact"] = times(title, arguments.rounds)
        keep(title, row)
    print(f"written to {path}")


if __name__ == "__main__":
    main()
