"""Scores predictions from measured operators on steps of models that no operator was listed from.

    python benchmarks/operator_score.py h200    # reads results/gpu/items/held-out-*.json

The operators are those of the file that `operator_file.py` has written for the GPU. Only steps that
the GPU limits count, because the time of a host is no property of a GPU. Result:
`results/advise_operators.json`, with the errors, the share of intervals that contain the measured
time, and every step.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h200
import numpy as np
from fit_current import HOST, summary

from halfstep.advise.predict import measured
from halfstep.advise.predict.forecast import SHARE, Forecaster
from halfstep.advise.predict.gpus import gpu as gpu_named
from halfstep.files import json_text, write_atomically
from halfstep.recipe import recipe as find_recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from halfstep.advise.predict.gpus import Gpu
    from halfstep.advise.predict.measured import Measured
    from halfstep.advise.subject import Subject

    Row = dict[str, Any]

RESULTS = Path(__file__).resolve().parent / "results"
ITEMS = RESULTS / "gpu" / "items"
RESULT = RESULTS / "advise_operators.json"
KINDS = {"fp16 and bf16": ("fp16", "bf16"), "fp32 and tf32": ("fp32", "tf32")}
_OF = re.compile(r"(\S+), (\d+) images of (\d+) px, (N\w+)")


def subject(of: str) -> Subject:
    """Return the model and the batch that a row names."""
    found = _OF.fullmatch(of)
    if found is None:
        raise ValueError(f"a row is of {of!r}; allowed: NAME, N images of N px, NCHW or NHWC")
    name, batch, pixels, layout = found.groups()
    return h200.subject(name, int(batch), int(pixels), nhwc=layout == "NHWC")


def steps(documents: Iterable[Row]) -> list[Row]:
    """Return the measured steps of items: model, recipe, and milliseconds of step and host."""
    return [
        {
            "of": row["of"],
            "recipe": row["variant"].removeprefix("PyTorch, "),
            "ms": row["ms"]["median"],
            "host_ms": row["host_ms"]["median"],
        }
        for document in documents
        for row in document["rows"]
        if "ms" in row
    ]


def scored(
    rows: Sequence[Row],
    gpu: Gpu,
    near: Measured,
    make: Callable[[str], Subject] = subject,
) -> list[Row]:
    """Return the steps with their predictions, from measured operators and from the cost model.

    Args:
        rows: The measured steps.
        gpu: The GPU that they were measured on.
        near: The measured operators.
        make: Returns the model and the batch that a row is of.
    """
    forecasters: dict[str, tuple[Forecaster, Forecaster]] = {}
    found = []
    for row in rows:
        if row["of"] not in forecasters:
            of = make(row["of"])
            forecasters[row["of"]] = (
                Forecaster(of, largest=False, measured=[near]),
                Forecaster(of, largest=False, measured=[]),
            )
        recipe = find_recipe(row["recipe"])
        ours, model = (each.predict(recipe, gpu) for each in forecasters[row["of"]])
        if ours.lacks:
            continue
        low, value, high = (1e3 * each for each in ours.seconds)
        figures = {"predicted_ms": value, "low": low, "high": high}
        found.append(row | figures | {"model_ms": 1e3 * model.seconds.value})
    return found


def limited_by_gpu(row: Row) -> bool:
    """Tell whether the GPU takes longer for a step than the host to launch it."""
    return bool(row["host_ms"] < HOST * row["ms"])


def summaries(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the errors by kind of format, and the share of intervals with the measured time."""
    found: dict[str, Any] = {}
    for kind, recipes in KINDS.items():
        chosen = [row for row in rows if row["recipe"] in recipes]
        if chosen:
            measured_ms = np.array([row["ms"] for row in chosen])
            found[kind] = {
                source: summary(np.log([row[name] for row in chosen] / measured_ms))
                for source, name in (("operators", "predicted_ms"), ("model", "model_ms"))
            }
    inside = [row["low"] <= row["ms"] <= row["high"] for row in rows]
    found["intervals"] = {"n": len(rows), "percent": SHARE, "inside": float(np.mean(inside))}
    return found


def main() -> None:
    """Score the shipped file of a GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gpu", help="the name of the GPU in the table")
    gpu = gpu_named(parser.parse_args().gpu)
    documents = [json.loads(path.read_text()) for path in sorted(ITEMS.glob("held-out-*.json"))]
    if not documents:
        parser.error(f"no held-out-*.json is in {ITEMS}; run gpu.py --only held-out-0,...")
    near = measured.read(measured.SHIPPED / f"{gpu.key}.json", own=False)
    rows = scored([row for row in steps(documents) if limited_by_gpu(row)], gpu, near)
    result = {"device": near.device, "errors": summaries(rows), "rows": rows}
    write_atomically(RESULT, json_text(result, indent=1) + "\n")
    print(json.dumps(result["errors"], indent=1))


if __name__ == "__main__":
    main()
