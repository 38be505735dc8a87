"""Writes what was measured on an H200 into the README and the docs, from `results/gpu/h200.json`.

    python benchmarks/h200.py              # write the tables
    python benchmarks/h200.py --predict    # predict the measured steps again, then write the tables

The result names the GPU, the versions and how the steps were measured. `--predict` replaces its
predictions by those of the cost model in this tree, on any machine. Of repeated measurements, the
tables show the first.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docs_table
import numpy as np
import timm
import torch
from torch.nn import functional

from halfstep.advise.predict.forecast import Forecaster
from halfstep.advise.predict.gpus import gpu
from halfstep.advise.predict.memory import CONTEXT, PIECES
from halfstep.advise.subject import Subject
from halfstep.errors import UserError
from halfstep.files import json_text, write_atomically
from halfstep.recipe import recipe as find_recipe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Row = dict[str, Any]

RESULTS = Path(__file__).resolve().parent / "results" / "gpu" / "h200.json"
RESNET = {"model": "resnet50", "batch": 256, "nhwc": True}
VIT = {"model": "vit_base_patch16_224", "batch": 128, "nhwc": False}
FORMATS = ("fp32", "tf32", "bf16", "fp16")
GROUPS = (("fp16", "bf16"), ("fp32",), ("tf32",))
"""The formats whose prediction errors are summarized together."""
MLP = {
    "torch bf16 eager": "PyTorch, bf16",
    "torch bf16 compile": "PyTorch, bf16, compiled",
    "torchao tensorwise compile": "torchao, FP8 tensorwise, compiled",
    "torchao rowwise compile": "torchao, FP8 rowwise, compiled",
    "halfstep bf16": "halfstep, bf16",
    "halfstep fp8": "halfstep, fp8",
    "halfstep fp8-delayed": "halfstep, fp8-delayed",
}
ADAMW = {
    "torch fp32 fused": "PyTorch, fp32, fused",
    "torch bf16 fused": "PyTorch, bf16, fused",
    "torchao bf16 sr": "torchao, bf16 with stochastic rounding",
    "halfstep fp32": "halfstep, fp32",
    "halfstep fp16": "halfstep, fp16",
    "halfstep o2": "halfstep, o2",
    "halfstep bf16-true": "halfstep, bf16-true",
    "halfstep bf16-kahan": "halfstep, bf16-kahan",
    "halfstep bf16-sr": "halfstep, bf16-sr",
}
_RARE = 1.2
"""The mean over the median of a step's times from which on the median is shown too."""
_PREDICTED = ("predicted_seconds", "predicted_memory_bytes", "predicted_bound")


def find(rows: Iterable[Row], **wanted: Any) -> Row | None:
    """Return the first row with these values, or None."""
    return next((row for row in rows if wanted.items() <= row.items()), None)


def setting(row: Row) -> tuple[Any, ...]:
    """Return what identifies a step: its model, images, layout and recipe."""
    return tuple(row[name] for name in ("model", "batch", "px", "nhwc", "recipe"))


def time(row: Row | None) -> str:
    """Return the mean milliseconds of a step, beside the median if some steps took far longer."""
    if row is None:
        return "-"
    if row["ms"] < _RARE * row["ms_median"]:
        return f"{row['ms']:.1f}"
    return f"{row['ms_median']:.1f} (mean {row['ms']:.1f})"


def rate(row: Row | None) -> str:
    """Return the images of a second."""
    return "-" if row is None else f"{1e3 * row['batch'] / row['ms']:,.0f}"


def peak(row: Row | None) -> str:
    """Return the peak of allocated tensors in GiB."""
    return "-" if row is None else f"{row['peak_MiB'] / 1024:.1f}"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of a table."""
    first, *others = (f"| {' | '.join(row)} |" for row in (head, *rows))
    return [first, "| --- " * (first.count("|") - 1) + "|", *others]


def readme(rows: list[Row]) -> list[str]:
    """Return the table of the README: images a second and peak memory of a ResNet-50."""
    theirs, ours = (
        [find(rows, way=way, recipe=recipe, **RESNET) for recipe in FORMATS]
        for way in ("pytorch", "halfstep")
    )
    return table(
        ("ResNet-50 on an H200", *FORMATS),
        [
            ("images a second, PyTorch's own loop", *map(rate, theirs)),
            ("images a second, halfstep's engine", *map(rate, ours)),
            ("peak memory, GiB", *map(peak, ours)),
        ],
    )


def recipes(rows: list[Row]) -> list[str]:
    """Return the milliseconds and the peak memory of each recipe."""
    names = dict.fromkeys(
        (row["recipe"], "+compile" if "+compile" in row["way"] else "")
        for row in rows
        if RESNET.items() <= row.items()
    )
    cells = []
    for recipe, how in names:
        line = [f"{recipe}, compiled" if how else recipe]
        for model in (RESNET, VIT):
            theirs, ours = (
                find(rows, way=way + how, recipe=recipe, **model) for way in ("pytorch", "halfstep")
            )
            line += [time(theirs), time(ours), peak(ours)]
        cells.append(line)
    ways = ("PyTorch's loop, ms", "engine, ms", "GiB")
    return table(
        ("recipe", *(f"{of}: {way}" for of in ("ResNet-50", "ViT-B") for way in ways)), cells
    )


def ways(rows: list[Row], section: str, names: dict[str, str]) -> list[str]:
    """Return the milliseconds and the peak memory of each way to take the same step."""
    of = {way: find(rows, section=section, way=way) for way in names}
    return table(
        ("step", "ms", "GiB"), [(names[way], time(row), peak(row)) for way, row in of.items()]
    )


def compared(rows: list[Row]) -> list[Row]:
    """Return a row for each step whose prediction is compared: PyTorch's loop, not compiled."""
    of: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if row["section"] == "step" and row["way"] == "pytorch":
            of.setdefault(setting(row), row)
    return list(of.values())


def of_time(row: Row) -> float:
    """Return the predicted time of a step over the measured one."""
    return float(1e3 * row["predicted"]["predicted_seconds"]["value"] / row["ms"])


def of_bytes(row: Row) -> float:
    """Return the predicted bytes of tensors over the measured ones."""
    tensors = (row["predicted"]["predicted_memory_bytes"] - CONTEXT) / PIECES
    return float(tensors / 2**20 / row["peak_MiB"])


def errors(rows: list[Row], formats: Iterable[str]) -> NDArray[np.float64]:
    """Return the relative errors of the predicted times of steps in some formats."""
    chosen = {*formats}
    return np.array([abs(of_time(row) - 1) for row in compared(rows) if row["recipe"] in chosen])


def predictions(rows: list[Row]) -> list[str]:
    """Return the measured steps with predictions: milliseconds, and predicted over measured."""
    steps: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in compared(rows):
        steps.setdefault(setting(row)[:-1], {})[row["recipe"]] = row
    cells = []
    for (model, batch, pixels, nhwc), of in steps.items():
        found = (
            f"{of[name]['ms']:.1f} ms, {of_time(of[name]):.2f}" if name in of else "-"
            for name in FORMATS
        )
        lowest, highest = (f"{end(map(of_bytes, of.values())):.2f}" for end in (min, max))
        of_all = lowest if lowest == highest else f"{lowest} to {highest}"
        layout = "NHWC" if nhwc else "NCHW"
        cells.append((model, f"{batch} x {pixels} px", layout, *found, of_all))
    return table(("model", "images", "layout", *FORMATS, "bytes of tensors"), cells)


def tables(document: dict[str, Any]) -> dict[tuple[str, str], list[str]]:
    """Return the lines of each table, by its page and its mark."""
    rows = document["rows"]
    return {
        ("../README.md", "h200"): readme(rows),
        ("performance.md", "h200"): recipes(rows),
        ("performance.md", "h200 fp8"): ways(rows, "fp8", MLP),
        ("performance.md", "h200 adamw"): ways(rows, "optim", ADAMW),
        ("advise-gpus-validation.md", "h200"): predictions(rows),
    }


def predict(document: dict[str, Any]) -> None:
    """Predict the steps of a result that were not compiled, on the GPU that it was measured on."""
    at = gpu(document["gpu"])
    forecasters: dict[tuple[Any, ...], Forecaster] = {}
    for row in document["rows"]:
        row.pop("predicted", None)
        if row["section"] != "step" or row["way"] not in {"pytorch", "halfstep"}:
            continue
        model = setting(row)[:-1]
        if model not in forecasters:
            forecasters[model] = forecaster(*model)
        try:
            forecast = forecasters[model].predict(find_recipe(row["recipe"]), at)
        except UserError:  # advise does not predict this recipe
            continue
        predicted = forecast.as_json()
        row["predicted"] = {name: predicted[name] for name in _PREDICTED}


def forecaster(name: str, batch: int, pixels: int, nhwc: bool) -> Forecaster:
    """Return what predicts the steps of a model."""
    return Forecaster(subject(name, batch, pixels, nhwc), largest=False)


def subject(name: str, batch: int, pixels: int, nhwc: bool) -> Subject:
    """Return a model of timm with a batch of images and the SGD of the measured steps."""
    layout = torch.channels_last if nhwc else torch.contiguous_format
    images = torch.zeros(batch, 3, pixels, pixels).contiguous(memory_format=layout)
    return Subject(
        name,
        timm.create_model(name, num_classes=1000).to(memory_format=layout),
        lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]),
        [(images, torch.zeros(batch, dtype=torch.int64))],
        lambda model: torch.optim.SGD(model.parameters(), 0.01, momentum=0.9),
    )


def main() -> None:
    """Write the tables, after new predictions if they are requested."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--predict", action="store_true", help="predict the steps again")
    document = json.loads(RESULTS.read_text())
    if parser.parse_args().predict:
        predict(document)
        write_atomically(RESULTS, json_text(document, indent=2) + "\n")
    for (page, mark), lines in tables(document).items():
        docs_table.put(page, mark, lines)


if __name__ == "__main__":
    main()
