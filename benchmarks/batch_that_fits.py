"""Finds the largest batch that trains in a given memory, with and without compressed activations.

    python benchmarks/batch_that_fits.py [--models resnet18,resnet50] [--out batch_that_fits.json]

Each try is a separate process. It creates the model and an engine with SGD and momentum, and takes
two training steps. RLIMIT_DATA limits the private memory of the process to the memory that torch
itself already has, plus the cap. So weights, gradients, momentum, activations and temporary memory
of kernels must fit into the cap. The batch size is doubled until a batch does not fit; then a
binary search finds the limit up to 5 %. Freed memory returns to the system at once (mallopt), so
that fragmentation does not affect the result.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import timm
import torch
from native_half import processor
from torch.nn.functional import cross_entropy

from halfstep import Engine
from halfstep.mechanisms.activations.packing import native

MIB = 2**20
MODELS = {"resnet18": (64, 224 * MIB), "resnet50": (64, 448 * MIB)}
"""The side of an image in pixels, and the cap in bytes."""

WAYS = {"exact": "fp32", "act2": "act2"}
STEPS = 2
CLOSE = 1.05
"""The search ends when the smallest batch that does not fit is at most this times the largest that
does.
"""

DOES_NOT_FIT = 3
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # mallopt(3)
_OUT_OF_MEMORY = (
    "can't allocate memory", "not enough memory", "bad_alloc",
    "could not create", "could not execute",  # of oneDNN
)  # fmt: skip


def taken() -> int:
    """Return the private memory of this process that counts towards RLIMIT_DATA, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))


def train(name: str, pixels: int, recipe: str, batch: int) -> None:
    """Take a few training steps."""
    torch.manual_seed(0)
    model = timm.create_model(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(batch, 3, pixels, pixels)
    labels = torch.randint(0, 1000, (batch,))
    with Engine(model, optimizer, recipe=recipe) as engine:
        for _ in range(STEPS):
            with engine.autocast():
                loss = cross_entropy(engine.model(images), labels)
            engine.backward(loss)
            engine.step()


def fits(name: str, pixels: int, cap: int, recipe: str, batch: int) -> bool:
    """Tell whether a process with a memory cap can train with a batch of this size.

    Raises:
        RuntimeError: If the process fails for a reason other than lack of memory.
    """
    child = os.fork()
    if not child:
        limit = taken() + cap
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        code = 0
        try:
            train(name, pixels, recipe, batch)
        except MemoryError:
            code = DOES_NOT_FIT
        except RuntimeError as error:
            code = DOES_NOT_FIT if any(said in str(error) for said in _OUT_OF_MEMORY) else 1
            if code == 1:
                print(error, file=sys.stderr, flush=True)
        os._exit(code)
    status = os.waitpid(child, 0)[1]
    # A library that cannot allocate memory may abort the process.
    aborted = os.WIFSIGNALED(status) and os.WTERMSIG(status) in {signal.SIGABRT, signal.SIGSEGV}
    code = DOES_NOT_FIT if aborted else os.waitstatus_to_exitcode(status)
    if code not in {0, DOES_NOT_FIT}:
        raise RuntimeError(f"{name} under {recipe} at a batch of {batch} ended with {code}")
    return code == 0


def largest(name: str, pixels: int, cap: int, recipe: str) -> dict[str, int]:
    """Return the largest tried batch size that fits, and the smallest that does not."""
    low, high = 0, 8
    while fits(name, pixels, cap, recipe, high):
        low, high = high, 2 * high
    while high > max(low * CLOSE, low + 1):
        middle = (low + high) // 2
        if fits(name, pixels, cap, recipe, middle):
            low = middle
        else:
            high = middle
    return {"fits": low, "does_not_fit": high}


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--out", default="batch_that_fits.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for parameter in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
        ctypes.CDLL(None).mallopt(parameter, 64 * 1024)  # a try cannot use memory freed here
    native.library()  # compiled here, without the memory cap
    found: dict[str, Any] = {}
    for name in arguments.models.split(","):
        pixels, cap = MODELS[name]
        train(name, 32, "act2", 2)  # memory that torch allocates only once does not count
        batches = {}
        for way, recipe in WAYS.items():
            start = time.monotonic()
            batches[way] = largest(name, pixels, cap, recipe)
            print(name, way, batches[way], f"{time.monotonic() - start:.0f} s", flush=True)
        found[name] = {"pixels": pixels, "cap_mib": cap // MIB, "batches": batches}
    document = {
        "environment": {
            "torch": torch.__version__, "timm": timm.__version__, "processor": processor(),
            "threads": 1, "steps": STEPS, "optimizer": "SGD with momentum, fp32 weights",
        },
        "models": found,
    }  # fmt: skip
    path = Path(__file__).parent / "results" / arguments.out
    path.write_text(json.dumps(document, indent=2) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
