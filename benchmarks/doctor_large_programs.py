"""Checks whether doctor names a fault in training programs of more than a thousand lines.

The programs are timm's `train.py`, torchvision's references for classification and detection, and a
language model of transformers that is trained with Accelerate. The first three are taken from
checkouts that the user names, and use the installed libraries. A fault is a change of a few lines
in a copy of a file of the program or its library; this repository contains no copies. Each run has
one fault, and each program also runs without a fault.

    python benchmarks/doctor_large_programs.py --timm DIR --torchvision DIR/references

The results also keep doctor's first answer for each fault, from before later improvements.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docs_table
from large_programs import classifier_faults, detector_faults, language_faults, timm_faults
from large_programs.data import write_boxes, write_images
from large_programs.faults import Outcome
from large_programs.run import run

from halfstep.files import json_text, write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable

    from large_programs.faults import Fault, Program

RESULTS = Path(__file__).parent / "results" / "doctor_large_programs.json"
LISTS = (language_faults, classifier_faults, detector_faults, timm_faults)
LIBRARIES = {"accelerate": ("accelerate", "transformers"), "detector": ("pycocotools",)}


def main() -> None:
    """Run the programs whose checkouts are given, with each fault."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--timm", type=Path, help="a checkout of pytorch-image-models")
    parser.add_argument("--torchvision", type=Path, help="the folder references of a checkout")
    parser.add_argument("--only", default="", help="codes or programs, with commas between")
    given = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "TIMM_FUSED_ATTN": "0"}
    references = given.torchvision
    checkouts = {
        "timm": given.timm,
        "torchvision": references and references / "classification",
        "detector": references and references / "detection",
    }
    only = {each for each in given.only.split(",") if each}
    with tempfile.TemporaryDirectory() as name:
        images, boxes = Path(name) / "images", Path(name) / "boxes"
        write_images(images)
        write_boxes(boxes)
        for each in LISTS:
            program: Program = each.PROGRAM
            faults: tuple[Fault, ...] = each.FAULTS
            reason = _left_out(program, checkouts.get(program.name))
            if reason:
                print(f"{program.name} is left out: {reason}")
                continue
            data = boxes if program.name == "detector" else images
            for fault in (None, *faults):
                names = {program.name, fault.code if fault else "nothing"}
                if only and not only & names:
                    continue
                _keep(_shown(run(program, checkouts.get(program.name), data, fault)))
    record = _record()
    docs_table.put("doctor.md", "large programs", table(record))
    print(json.dumps(record["totals"], indent=1))


def _left_out(program: Program, checkout: Path | None) -> str:
    missing = [each for each in LIBRARIES.get(program.name, ()) if not _is_installed(each)]
    if missing:
        return f"{' and '.join(missing)} not installed"
    return "" if program.text or checkout else "no checkout of it is given"


def _is_installed(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


def _shown(outcome: Outcome) -> Outcome:
    print(
        f"{outcome.program:12} {outcome.expected:32} {', '.join(outcome.given) or 'nothing':40} "
        f"{outcome.module:24} {outcome.line[:60]}",
        flush=True,
    )
    return outcome


def _record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULTS.read_text())
    return found


def _keep(outcome: Outcome) -> None:
    """Write an outcome in place of an earlier one, so that an interruption loses no outcomes."""
    record = _record() if RESULTS.exists() else {"first": {}, "outcomes": []}
    key = (outcome.program, outcome.expected)
    record["first"].setdefault(f"{outcome.program}: {outcome.expected}", outcome.given)
    kept = [Outcome(**each) for each in record["outcomes"]]
    kept = [each for each in kept if (each.program, each.expected) != key]
    outcomes = sorted([*kept, outcome], key=lambda each: (each.program, each.row or 0))
    write_atomically(
        RESULTS,
        json_text(
            {
                "totals": totals(outcomes, record["first"]),
                "first": record["first"],
                "outcomes": [asdict(each) for each in outcomes],
            }
        ),
    )


def table(record: dict[str, Any]) -> list[str]:
    """Return the table of the docs: a line for each program."""
    lines = [
        "| program | faults | named at first | named | line right | module right | false alarms |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    outcomes = [Outcome(**each) for each in record["outcomes"]]
    for program in sorted({each.program for each in outcomes}):
        mine = totals((each for each in outcomes if each.program == program), record["first"])
        lines.append(
            f"| {program} | {mine['faults']} | {mine['cause_named_at_first']} "
            f"| {mine['cause_named']} | {mine['line_right']} | {mine['module_right']} "
            f"| {mine['false_alarms']} |"
        )
    return lines


def totals(outcomes: Iterable[Outcome], first: dict[str, list[str]]) -> dict[str, object]:
    """Count the causes, lines and modules that doctor names correctly, and its false alarms."""
    outcomes = list(outcomes)
    faulty = [each for each in outcomes if each.row is not None]
    whole = [each for each in outcomes if each.row is None]
    lines = [each.line_is_right for each in faulty if each.line_is_right is not None]
    modules = [each.module_is_right for each in faulty if each.module_is_right is not None]
    at_first = [first[f"{each.program}: {each.expected}"] for each in faulty]
    return {
        "programs": len({each.program for each in outcomes}),
        "faults": len(faulty),
        "rows": len({each.row for each in faulty}),
        "cause_named_at_first": sum(
            each.expected in given for each, given in zip(faulty, at_first, strict=True)
        ),
        "cause_named": sum(each.expected in each.given for each in faulty),
        "other_causes_named": sum(len({*each.given} - {each.expected}) for each in faulty),
        "line_right": f"{sum(lines)} of {len(lines)}",
        "module_right": f"{sum(modules)} of {len(modules)}",
        "healthy_programs": len(whole),
        "false_alarms": sum(bool(each.given) for each in whole),
    }


if __name__ == "__main__":
    main()
