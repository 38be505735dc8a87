"""Scores doctor on the programs in `ledger_programs`, and applies the changes that it prints.

For each ledger of doctor (gradients, rates, parameters, modes) there are 12 broken and 12 healthy
programs, written by people who had not seen doctor's rules. `truth.json` has for each program what
is wrong, the result of the broken and of the mended program (less is better), and the causes that
count as right. The text of a mended program lies beside the broken one.

The programs in `further_programs` were written by another author when those of the ledgers had been
mended for. They were asked for mistakes that are stranger than those of textbooks, and are also
about numerics. Those in `unseen_programs` came after that, from three more authors: mistakes from
public reports, in the shape of code bases of sixteen fields, and in formats and state. Those in its
folder `later` are by a fourth author, when causes had been added for the others. Two more authors
came after that: those in `causes` have 26 of doctor's own causes, drawn at random, each in a shape
that its author chose without seeing the rules; those in `reported` have mistakes that users report.

The programs in `shape_programs` have each of doctor's 166 causes once, by seven authors who had not
seen the rules and were asked for shapes of which the writer of a check would not think first. Each
author then mended doctor for what it had missed. After that, another author wrote those in the
folder `ordinary` of `unseen_programs`: 30 causes, drawn at random, as people of some field come to
them in ordinary work. Those in `everyday` are the same by another author, with 30 other draws.
Those in `beyond` are by an author who had the list of the causes, and was asked for mistakes that
are in none of them. Those in `work` have 32 causes, drawn at random, and those in `public` mistakes
from public reports, each by another author; `truth.json` has the address of each report. Those in
`tasks` and `tickets` are such sets again, by two more authors. Those in `libraries` are by another
one: mistakes of users of transformers, Lightning, Accelerate, timm and torchvision. That folder is
left out where these packages are missing. Those in `practice` have 32 causes at random once more.

The causes that count were added after the first run, by reading each finding. `first` in the result
is the score of that run, before anything was mended; it is kept as it is.

    python benchmarks/doctor_ledgers.py                          # about ten minutes on one core
    python benchmarks/doctor_ledgers.py rates/b02                # a part is printed and not kept
    python benchmarks/doctor_ledgers.py --further                # those of further_programs
    python benchmarks/doctor_ledgers.py --unseen                 # those of unseen_programs
    python benchmarks/doctor_ledgers.py --shapes                 # those of shape_programs

A printed change is a change of lines: it has lines with "-" or "+" that are code, and no words.
It is applied to a copy of the program, whose result is then nearer to the mended program's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import runpy
import sys
import tempfile
import time
import traceback
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from halfstep.doctor.program import run_program

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
RESULTS = HERE / "results"
LEDGERS = ("gradients", "rates", "parameters", "modes")
SETS = {
    "ledger_programs": LEDGERS,
    "further_programs": (*LEDGERS, "numerics"),
    "unseen_programs": (
        "reports",
        "domains",
        "formats",
        "later",
        "causes",
        "reported",
        "ordinary",
        "everyday",
        "beyond",
        "work",
        "public",
        "tasks",
        "tickets",
        "libraries",
        "practice",
    ),
    "shape_programs": (
        "numerics",
        "formats",
        "scale",
        "gradients",
        "movement",
        "data",
        "dependence",
    ),
}
KEPT = {
    "ledger_programs": "doctor_ledgers.json",
    "further_programs": "doctor_further.json",
    "unseen_programs": "doctor_unseen.json",
    "shape_programs": "doctor_shapes.json",
}
NEEDS = {"libraries": ("accelerate", "lightning", "torchmetrics", "transformers")}
"""The packages that the programs of a folder import, besides those of the tests."""
LONGEST_S = 300
PLACE = re.compile(r"@ .*:(\d+)$")


def forked(run: Callable[[], int], log: Path) -> None:
    """Call a function in a forked process, with its output in a file; end it after LONGEST_S."""
    child = os.fork()
    if child == 0:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        try:
            run()
        except SystemExit:
            pass
        except BaseException:  # noqa: BLE001  (the process ends here)
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(0)
    until = time.monotonic() + LONGEST_S
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > until:
            os.kill(child, 9)
            os.waitpid(child, 0)
            return
        time.sleep(0.05)


def result_of(log: Path) -> float | None:
    """Return the result that a program printed; None if it printed none."""
    text = log.read_text(errors="replace")
    found = re.findall(r"^result:?\s*(\S+)", text, re.MULTILINE | re.IGNORECASE)
    return float(found[-1]) if found else None


def diagnosed(program: Path, work: Path) -> list[dict[str, Any]]:
    """Run a program under doctor; return its verdicts."""
    report = work / "report"
    os.chdir(program.parent)
    forked(lambda: run_program([str(program)], report), work / "log")
    with contextlib.suppress(OSError):
        record: dict[str, Any] = json.loads((report / "diagnosis.json").read_text())
        return list(record["diagnosis"]["verdicts"])
    return []


def is_code(line: str) -> bool:
    """Tell whether a line of a change is to be taken as it stands."""
    return line.startswith(("- ", "+ ", "  ", "@ ")) and not line.startswith("+ #")


def applied(program: Path, finding: dict[str, Any]) -> str | None:
    """Return the program's text with a printed change; None if it does not apply.

    A line with "-" or without a sign must stand at its place, without regard to indentation.
    """
    if finding["site"] is None:
        return None
    lines: list[str | None] = [*program.read_text().splitlines()]
    before: dict[int, list[str]] = {}
    at = finding["site"]["line"] - 1
    for line in finding["change"]:
        if place := PLACE.match(line):
            at = int(place[1]) - 1
            continue
        text = line[2:].rstrip()
        if line.startswith("+"):
            near = next((n for n in (at - 1, at) if 0 <= n < len(lines)), 0)
            own = program.read_text().splitlines()[near]
            before.setdefault(at, []).append(own[: len(own) - len(own.lstrip())] + text.strip())
        else:
            present = lines[at] if 0 <= at < len(lines) else None
            if present is None or present.strip() != text.strip():
                return None
            if line.startswith("-"):
                lines[at] = None
            at += 1
    whole = [
        text
        for number in range(len(lines) + 1)
        for text in (*before.get(number, []), *lines[number : number + 1])
        if text is not None
    ]
    return "\n".join(whole) + "\n"


def mended(program: Path, finding: dict[str, Any], truth: dict[str, Any], work: Path) -> str:
    """Apply a printed change and run the program: "words", "does not apply", "mends" or "no"."""
    change = finding["change"]
    if not any(line.startswith(("-", "+")) for line in change) or not all(map(is_code, change)):
        return "words"
    text = applied(program, finding)
    if text is None:
        return "does not apply"
    copy = work / program.name
    copy.write_text(text)
    log = work / "log"
    os.chdir(work)

    def run() -> int:
        sys.argv = [str(copy)]  # without the part that was chosen
        return bool(runpy.run_path(str(copy), run_name="__main__"))

    forked(run, log)
    found = result_of(log)
    broken, right = float(truth["result_broken"]), float(truth["result_mended"])
    if found is None or not math.isfinite(found):
        return "no"
    is_nearer = not math.isfinite(broken) or abs(found - right) < abs(found - broken)
    return "mends" if is_nearer else "no"


def score(programs: str, chosen: str) -> list[dict[str, Any]]:
    """Run the programs of a set whose names begin with `chosen`; return a row for each."""
    rows = []
    for ledger in SETS[programs]:
        missing = [each for each in NEEDS.get(ledger, ()) if find_spec(each) is None]
        if missing:
            sys.stdout.write(f"{ledger} is left out, for it needs {', '.join(missing)}\n")
            continue
        folder = HERE / programs / ledger
        for truth in json.loads((folder / "truth.json").read_text()):
            name = f"{ledger}/{truth['file'].removesuffix('.py')}"
            if not name.startswith(chosen):
                continue
            program = folder / truth["file"]
            with tempfile.TemporaryDirectory() as work:
                verdicts = diagnosed(program, Path(work))
                codes = [each["code"] for each in verdicts]
                row = {"program": name, "found": codes}
                if truth["broken"]:
                    row["named"] = bool(codes) and codes[0] in truth["codes"]
                    if row["named"]:
                        finding = verdicts[0]["finding"]
                        row["change"] = mended(program, finding, truth, Path(work))
            rows.append(row)
            sys.stdout.write(f"{json.dumps(row)}\n")
            sys.stdout.flush()
    return rows


def totals(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Return for each ledger how many broken programs are named, and how many alarms there are."""
    counted = {}
    for ledger in dict.fromkeys(row["program"].partition("/")[0] for row in rows):
        own = [row for row in rows if row["program"].startswith(f"{ledger}/")]
        counted[ledger] = {
            "broken": sum("named" in row for row in own),
            "named": sum(row.get("named", False) for row in own),
            "healthy": sum("named" not in row for row in own),
            "alarms": sum("named" not in row and bool(row["found"]) for row in own),
            "changes of lines": sum(row.get("change", "words") != "words" for row in own),
            "applied and mended": sum(row.get("change") == "mends" for row in own),
        }
    return counted


def main() -> None:
    """Score, print and keep the results."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    which = parser.add_mutually_exclusive_group()
    for each in ("further", "unseen"):
        which.add_argument(f"--{each}", action="store_const", const=f"{each}_programs", dest="set")
    which.add_argument("--shapes", action="store_const", const="shape_programs", dest="set")
    parser.add_argument("part", nargs="?", default="", help="where the names begin, as rates/b")
    given = parser.parse_args()
    programs, chosen = given.set or "ledger_programs", given.part
    rows = score(programs, chosen)
    sys.stdout.write(f"{json.dumps(totals(rows), indent=1)}\n")
    if not chosen:
        results = RESULTS / KEPT[programs]
        kept = json.loads(results.read_text()) if results.exists() else {}
        kept |= {"totals": totals(rows), "rows": rows}
        results.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
