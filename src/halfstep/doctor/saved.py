"""Explains what doctor has left: evidence again, and a bundle's step run again on this machine."""

from __future__ import annotations

import linecache
from dataclasses import replace
from typing import TYPE_CHECKING

from halfstep.doctor.bundle import STEP, Bundle, read, read_evidence
from halfstep.doctor.diagnose import diagnose
from halfstep.doctor.rerun import Rerun

if TYPE_CHECKING:
    from pathlib import Path

    from halfstep.doctor.evidence import Evidence
    from halfstep.doctor.verdict import Diagnosis


def is_saved(path: Path) -> bool:
    """Return whether a path is a bundle's, or that of saved evidence."""
    return path.suffix == ".json" or (path / STEP).is_file()


def explain(path: Path) -> tuple[Diagnosis, Evidence, str]:
    """Explain a bundle, or the evidence in a JSON file.

    Returns:
        The diagnosis, what it was reached from, and for a bundle whether its step repeats here.

    Raises:
        UserError: If the path has neither.
    """
    if not path.is_dir():
        evidence = read_evidence(path)
        return diagnose(evidence), evidence, ""
    bundle = read(path)
    evidence, said = _run_again(bundle)
    return diagnose(evidence), evidence, said


def _run_again(bundle: Bundle) -> tuple[Evidence, str]:
    """Return the evidence with what the step tells here in place of what it told there."""
    for file, lines in bundle.recording.lines.items():
        _show_lines(file, lines)
    about = bundle.about
    step = Rerun(bundle.recording, bundle.tensors, about.iteration, about.why, bundle.loss)
    plain = step.plain()
    if plain.note:
        return bundle.evidence, f"the step cannot be run here: {plain.note}"
    births = step.traced()
    replays = [plain, step.fp32()]
    if step.scale != 1:
        replays.append(step.at_scale(1.0))
    here = replace(bundle.evidence, births=births, replays=tuple(replays))
    if plain.finite:
        return bundle.evidence, (
            f"step {about.iteration} is finite here; it was not under torch {about.torch} "
            f"on {about.platform}"
        )
    culprit = next((each for each in births if each.culprit), None)
    where = f": {culprit.kind} from {culprit.op} {culprit.where}" if culprit else ""
    bits = " with the same bits" if plain.same else ""
    return here, f"step {about.iteration} repeats here{bits}{where}"


def _show_lines(file: str, lines: dict[int, str]) -> None:
    """Let the texts of lines be found though their file is not on this machine."""
    if not linecache.getlines(file):
        text = [f"{lines.get(number, '')}\n" for number in range(1, max(lines) + 1)]
        linecache.cache[file] = (len(text), None, text, file)
