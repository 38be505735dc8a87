"""Writes what was measured on an H100 into the docs, from `results/gpu/steps.json`.

    python benchmarks/h100.py              # write the table
    python benchmarks/h100.py --predict    # predict the measured steps again, then write the table

A step of the engine is compared with one of PyTorch's own loop in the same round. `--predict`
replaces the predictions of the result by those of the cost model in this tree, on any machine.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import docs_table
import h200

from halfstep.advise.predict.gpus import gpu
from halfstep.advise.predict.memory import CONTEXT, PIECES
from halfstep.files import json_text, write_atomically
from halfstep.recipe import recipe as find_recipe

RESULTS = Path(__file__).resolve().parent / "results" / "gpu" / "steps.json"
PAGE = "advise-gpus-validation.md"
OWN = ("fp32", "bf16", "fp16")
"""The recipes whose steps are compared with PyTorch's own loop."""


def predict(document: dict[str, Any]) -> None:
    """Predict the steps of a result again, on the GPU that it was predicted for."""
    at = gpu(document["predicted for"])
    forecasters = {}
    for row in document["rows"]:
        model = row["model"], row["batch"], row["pixels"]
        if model not in forecasters:
            forecasters[model] = h200.forecaster(*model, nhwc=False)
        row["predicted"] = forecasters[model].predict(find_recipe(row["recipe"]), at).as_json()


def table(document: dict[str, Any]) -> list[str]:
    """Return the engine's rows of a result with predictions, as a table for the docs."""
    names = "model", "recipe", "step", "predicted step", "relative to PyTorch's loop"
    names += "tensors at the peak", "error of predicted bytes"
    lines = [f"| {' | '.join(names)} |", "| --- " * len(names) + "|"]
    for row in document["rows"]:
        if row["way"] != "engine":
            continue
        value, low, high = (
            f"{1e3 * row['predicted']['predicted_seconds'][name]:.1f}"
            for name in ("value", "low", "high")
        )
        ratio = f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
        tensors = (row["predicted"]["predicted_memory_bytes"] - CONTEXT) / PIECES
        error = round(tensors / row["peak_bytes"] - 1, 3) + 0.0  # no -0.0
        lines.append(
            f"| {row['model']} | {row['recipe']} | {row['milliseconds']:.1f} ms "
            f"| {value} ms [{low}, {high}] | {ratio if row['recipe'] in OWN else '-'} "
            f"| {row['peak_bytes'] / 1e9:.2f} GB | {error:+.1%} |"
        )
    return lines


def main() -> None:
    """Write the table, after new predictions if they are requested."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--predict", action="store_true", help="predict the steps again")
    document = json.loads(RESULTS.read_text())
    if parser.parse_args().predict:
        predict(document)
        write_atomically(RESULTS, json_text(document, indent=2) + "\n")
    docs_table.put(PAGE, "h100", table(document))


if __name__ == "__main__":
    main()
