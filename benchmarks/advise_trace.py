"""Times a prediction of cost: one trace, and the whole table of `halfstep advise --gpu`.

    python benchmarks/advise_trace.py

The table contains fp32 and the five recipes that advise tries by default, each traced at two batch
sizes. Each model is timed in a separate process, on one thread, after the imports and the creation
of the model. The first trace of a process is the slowest, because it fills PyTorch's caches.
Results go to `benchmarks/results/advise_trace.json`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import timm
import torch
from torch.nn import functional

from halfstep.advise.choose.advice import CANDIDATES
from halfstep.advise.predict.forecast import forecast
from halfstep.advise.predict.gpus import gpu
from halfstep.advise.predict.step import traced
from halfstep.advise.subject import Subject

RESULTS = Path(__file__).parent / "results" / "advise_trace.json"
MODELS = ("resnet18", "resnet50", "convnext_small")
BATCH, PIXELS = 32, 224


def subject(name: str) -> Subject:
    """Return a model of timm with a batch of images."""
    batch = torch.randn(BATCH, 3, PIXELS, PIXELS), torch.zeros(BATCH, dtype=torch.int64)
    return Subject(
        name,
        timm.create_model(name),
        lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]),
        [batch],
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    )


def measured(name: str) -> dict[str, float | str]:
    """Return the seconds of the first trace of a model, and of its whole table."""
    asked = subject(name)
    began = time.perf_counter()
    traced(asked, "fp16")
    first = time.perf_counter()
    forecast(asked, CANDIDATES, [gpu("h100")])
    return {
        "model": name,
        "parameters": sum(each.numel() for each in asked.model.parameters()),
        "first_trace_seconds": round(first - began, 2),
        "table_seconds": round(time.perf_counter() - first, 2),
    }


def main() -> None:
    """Time each model in a separate process, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", help="time this one, and print it")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.model:
        print(json.dumps(measured(given.model)))
        return
    rows = []
    for name in MODELS:
        command = [sys.executable, __file__, name]
        said = subprocess.run(command, check=True, capture_output=True, text=True)
        rows.append(json.loads(said.stdout.splitlines()[-1]))
        print(rows[-1], flush=True)
    found = {"torch": torch.__version__, "batch": BATCH, "pixels": PIXELS, "rows": rows}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
