"""Item `compare`: many seeds of `cifar10/fast` under half recipes, with an A/A row and a control.

The comparison continues from run to run of the queue, in `runs/gpu/compare`, until every row is
settled or all seeds have run. CIFAR-10 is in the folder that HALFSTEP_TEST_DATA names, or in data/.
A copy with other pixels will do: the claims are relative.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_items import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_items import At
    from gpu_items.turns import Row

TO_END = 12.0
"""Seconds before the deadline at which the comparison is stopped; its run saves a checkpoint."""
FULL = (
    *("cifar10/fast", "--recipes", "tf32,fp16,bf16,o2", "--margin", "0.5"),
    *("--looks", "4,8,16", "--aa", "--control", "--gpu", "none", "--device", "cuda"),
)
TOY = (
    *("digits", "--recipes", "fp32", "--seeds", "2", "--control", "--aa", "--gpu", "none"),
    *("--device", "cpu", "--options", "data.resolution=8", "max_steps=2", "epochs=1"),
    *("doctor=false", "probes=false", "tracking=[]"),
    "model.args={layers: [1, 1, 0, 0], channels: [8, 8, 8, 8]}",
)


def rows(at: At) -> Iterator[Row]:
    """Yield a row for each recipe: its answer, its accuracy and its speed so far."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "compare" if at.toy else ROOT / "runs" / "gpu" / "compare"
        data = Path(os.environ.get("HALFSTEP_TEST_DATA", "data")).absolute()
        options = () if at.toy else ("--options", f"data.root={data}", "data.verify=false")
        given = (*(TOY if at.toy else FULL), *options)
        said = _compared([*given, "--out", str(folder)], at)
        file = folder / "comparison.json"
        if not file.exists():
            yield {"of": given[0], "refused": said}
            return
        found = json.loads(file.read_text())
    answers = {each["label"]: each for each in found["verdicts"]}
    for row in found["rows"]:
        answer = answers.get(row["recipe"], {})
        measures = row["measures"]
        yield {
            "of": f"{found['config']}, margin {100 * found['margin']:g} points",
            "recipe": row["recipe"],
            "answer": answer.get("answer", "baseline"),
            "power": answer.get("power"),
            "status": row["status"],
            "difference": row["difference"],
            "best_accuracy": measures["best_accuracy"],
            "train_seconds": measures["train_seconds"],
            "wall_seconds": measures["wall_seconds"],
            "speed": row["speed"],
        }


def _compared(arguments: list[str], at: At) -> str:
    """Run the comparison until it ends or is out of time, and return its last line."""
    process = subprocess.Popen(
        [sys.executable, "-m", "halfstep", "compare", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"},
        start_new_session=True,
    )
    try:
        seconds = None if at.toy else max(at.left() - TO_END, 1.0)
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate()
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else f"exit code {process.returncode}"
