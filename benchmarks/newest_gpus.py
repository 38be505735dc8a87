"""Scores predictions on GPUs of which no fit knows anything: published speeds of B200, GH200, H200.

    python benchmarks/newest_gpus.py --cache DIR

`data/newest_gpus.csv` has ResNet-50 (NCHW) and BERT on SQuAD (sequences of 384), with which Lambda
has measured single GPUs (lambdal/deeplearning-benchmark, pytorch/results_v2). No constant is fitted
to them; those of Hopper are fitted to other steps on H200 and H100. Result:
`results/advise_newest_gpus.json`, with every step, its interval, and how many contain the speed.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import docs_table
import h200
import numpy as np
from fit_current import summary
from published_steps import Measurement, traced

from halfstep.advise.predict.cost import constants, step_time
from halfstep.advise.predict.forecast import SHARE
from halfstep.advise.predict.gpus import gpu
from halfstep.advise.predict.interval import around, half_width
from halfstep.advise.predict.workload import workload
from halfstep.files import json_text, write_atomically

HERE = Path(__file__).resolve().parent
SPEEDS = HERE / "data" / "newest_gpus.csv"
RESULT = HERE / "results" / "advise_newest_gpus.json"
PAGE = "advise-gpus-validation.md"


def measurements() -> list[Measurement]:
    """Return the published speeds."""
    with SPEEDS.open(newline="") as file:
        return [
            Measurement(
                model=row["task"],
                build=f"nvidia_{row['task']}",
                family=row["task"].split("_")[0],
                precision=row["precision"],
                layout="nchw",
                batch=int(row["batch_size"]),
                image_size=224 if row["task"] == "resnet50" else 384,
                gpu=row["gpu"],
                seconds=int(row["batch_size"]) / float(row["samples_per_s"]),
                machine=row["source"],
            )
            for row in csv.DictReader(file)
        ]


def scored(each: Measurement, cache: Path) -> dict[str, Any]:
    """Return a speed beside its prediction, in samples per second."""
    on = gpu(each.gpu)
    work = workload(traced(each, cache).calls, on, tf32=each.precision != "fp32")
    time = step_time(work, constants(on.architecture))
    found = around(time.seconds, half_width(work, on, SHARE)).inverse(each.batch)
    return {
        "gpu": each.gpu, "model": each.model, "precision": each.precision, "batch": each.batch,
        "samples_per_s": each.batch / each.seconds, "predicted": found.as_json(),
        "inside": found.low <= each.batch / each.seconds <= found.high,
    }  # fmt: skip


def table(document: dict[str, Any]) -> list[str]:
    """Return the lines of the table in the docs."""
    cells = []
    for row in document["rows"]:
        low, value, high = (f"{row['predicted'][name]:,.0f}" for name in ("low", "value", "high"))
        inside = "yes" if row["inside"] else "no"
        step = f"{row['model']}, {row['batch']} samples"
        speed = f"{row['samples_per_s']:,.0f}"
        on = gpu(row["gpu"]).name.split()[0]
        cells.append((on, step, row["precision"], speed, f"{value} [{low}, {high}]", inside))
    names = ("GPU", "step", "precision", "samples a second", "predicted", "in the interval")
    return h200.table(names, cells)


def main() -> None:
    """Score the predictions, and write the result and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, required=True, help="where traces are kept")
    cache = parser.parse_args().cache
    rows = [scored(each, cache) for each in measurements()]
    errors = {
        name: summary(
            np.array([np.log(row["samples_per_s"] / row["predicted"]["value"]) for row in of])
        )
        | {"inside": sum(row["inside"] for row in of)}
        for name in ("b200", "gh200", "h200")
        if (of := [row for row in rows if row["gpu"] == name])
    }
    result = {"percent": SHARE, "errors": errors, "rows": rows}
    write_atomically(RESULT, json_text(result, indent=1) + "\n")
    print(json.dumps(errors, indent=1))
    print("\n".join(table(result)))
    docs_table.put(PAGE, "newest", table(result))


if __name__ == "__main__":
    main()
