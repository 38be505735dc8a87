"""Compares the time of a training step with PyTorch's own loop: engine, trainer and other tools.

Each variant trains in a separate process, forked from this one, so that changes of torch by one
tool do not affect the others. Only one process works at a time. In each round, each variant takes a
turn: a few steps that do not count, then the measured ones, in CPU time on one thread. A ratio is
the time of a variant's turn over that of the raw loop in the same round; the results contain the
median over rounds and the quartiles. All processes are restarted several times, because the
addresses of tensors make a step some percent faster or slower.

A step is zeroing, forward, loss, backward, clipping and update, for a batch that is already loaded.
For the two trainers, it is everything between a prepared batch and the end of the step: meters,
logs, progress and, for halfstep's trainer, doctor's watch. Each variant loads its batches in its
own process, with a DataLoader or the loader of its trainer. The time to load does not count, but
loading affects the step: its code and data displace those of the step in the processor's caches. A
step of the MLP takes 0.35 ms after a DataLoader has loaded its batch, and 0.31 ms in a loop over
one batch.

Half recipes are only measured on the MLP: PyTorch's own half convolutions on a CPU take ten to
fifty times as long as those of fp32, so no other difference would be visible. `cpu_half.py`
measures them.

    pip install lightning accelerate mmengine     # the peers; those that are missing are left out
    python benchmarks/step_overhead.py            # or a part: --models mlp --settings fp32 bf16

A part only replaces its own rows in the results.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docs_table
import quiet_machine
import torch
from steps.loops import checked, engine, raw, trainer, unchecked
from steps.peers import PEERS, REFUSES, missing
from steps.tasks import MODELS, SETTINGS
from steps.turns import measure

from halfstep.train.environment import describe

if TYPE_CHECKING:
    from steps.turns import Row, Variant

RESULTS = Path(__file__).parent / "results" / "step_overhead.json"
VARIANTS: dict[str, Variant] = {
    "raw": raw,
    "raw, checked": checked,
    "engine": engine,
    "engine, unchecked": unchecked,
    "trainer": trainer,
    **PEERS,
}
TRAINERS = {"trainer", "Lightning Trainer"}
"""Not measured with accumulation: they load batches between the micro-steps of a step."""
CHECKS = {"raw, checked", "engine, unchecked"}
"""Not measured with a loss scale or clipping, for which everyone reads the gradients."""


def variants_of(setting: str, chosen: list[str]) -> dict[str, Variant]:
    """Return the chosen variants that support a setting and are installed."""
    kind = SETTINGS[setting]
    able = [name for name in chosen if kind.recipe not in REFUSES.get(name, ())]
    if kind.accumulates:
        able = [name for name in able if name not in TRAINERS]
    if kind.clips or kind.recipe in {"fp16", "o2"}:
        able = [name for name in able if name not in CHECKS]
    return {name: VARIANTS[name] for name in able if name not in missing(chosen)}


def table(record: dict[str, Any]) -> list[str]:
    """Return the table of the docs: the time of each variant relative to the raw loop."""
    rows = {(each["model"], each["setting"], each["variant"]): each for each in record["rows"]}
    kinds = list(dict.fromkeys((model, setting) for model, setting, _ in rows))
    heads = [name.replace("raw", "raw loop") for name in VARIANTS]
    heads.append("engine, equal work")
    lines = [f"| step | {' | '.join(heads)} |", f"| --- |{' --- |' * len(heads)}"]
    for model, setting in kinds:
        cells = [_cell(rows.get((model, setting, name))) for name in VARIANTS]
        equal = rows.get((model, setting, "engine"), {}).get("equal_work")
        cells.append(f"{equal:.2f}" if equal else "-")
        lines.append(f"| {model}, {setting} | {' | '.join(cells)} |")
    return lines


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    if row["variant"] == "raw":
        return f"{row['microseconds'] / 1000:.2f} ms"
    return f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})"


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=12, help="of each start")
    parser.add_argument("--no-write", action="store_true", help="leave the results file alone")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    with quiet_machine.watched() as seen:
        for model in given.models:
            for setting in given.settings:
                if model != "mlp" and SETTINGS[setting].recipe != "fp32":
                    continue
                variants = variants_of(setting, ["raw", *(n for n in given.variants if n != "raw")])
                for row in measure(model, setting, variants, given.starts, given.rounds):
                    rows.append(row)
                    sys.stdout.write(
                        f"{model:16}{setting:22}{row.variant:18}{row.microseconds:10.1f} us"
                        f"{row.ratio:7.3f}  ({row.low:.3f} to {row.high:.3f})\n"
                    )
                    sys.stdout.flush()
    if given.no_write:
        return
    kept = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    fresh = [asdict(row) for row in rows]
    mine = {(each["model"], each["setting"], each["variant"]) for each in fresh}
    kept = [e for e in kept if (e["model"], e["setting"], e["variant"]) not in mine]
    places = [(m, s, v) for m in MODELS for s in SETTINGS for v in VARIANTS]
    ordered = sorted(
        [*kept, *fresh],
        key=lambda each: places.index((each["model"], each["setting"], each["variant"])),
    )
    record = {
        "environment": describe(torch.device("cpu")),
        "absent": missing(given.variants),
        "rows": ordered,
    }
    quiet_machine.keep(RESULTS, record, seen)
    docs_table.put("performance.md", "step overhead", table(record))


if __name__ == "__main__":
    main()
