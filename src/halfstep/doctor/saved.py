"""Explains saved evidence, and runs the step of a bundle again on this machine."""

from __future__ import annotations

import linecache
from dataclasses import replace
from typing import TYPE_CHECKING

from halfstep.doctor.bundle.files import STEP, Bundle, read, read_evidence
from halfstep.doctor.replay.rerun import Rerun
from halfstep.doctor.report.diagnose import diagnose
from halfstep.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from halfstep.doctor.record import Birth, Evidence
    from halfstep.doctor.verdict import Diagnosis

MOST_LINES = 1_000_000


def is_saved(path: Path) -> bool:
    """Return whether a path is a bundle or saved evidence."""
    return path.suffix == ".json" or (path / STEP).is_file()


def saved_in(path: Path) -> Path:
    """Return the path of the bundle or evidence in a report's directory; other paths unchanged."""
    inside = (path / "bundle", path / "diagnosis.json")
    return next((each for each in inside if each.exists() and is_saved(each)), path)


def explain(path: Path) -> tuple[Diagnosis, Evidence, str]:
    """Explain a bundle, or the evidence in a JSON file.

    Returns:
        The diagnosis, the evidence, and a line that says whether a bundle's step fails on this
        machine too; "" for a JSON file.

    Raises:
        UserError: If the path contains neither a bundle nor evidence.
    """
    if not path.is_dir():
        evidence = read_evidence(path)
        return _diagnosed(evidence, path), evidence, ""
    bundle = read(path)
    evidence, said = _run_again(bundle)
    return _diagnosed(evidence, path), evidence, said


def _diagnosed(evidence: Evidence, path: Path) -> Diagnosis:
    """Return the diagnosis; raise `UserError` if a rule fails, because the file is then invalid."""
    try:
        return diagnose(evidence)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise UserError(
            f"{path} is not a valid doctor file: its record contradicts itself "
            f"({type(error).__name__}: {error})"
        ) from error


def _run_again(bundle: Bundle) -> tuple[Evidence, str]:
    """Run the step of a bundle again.

    Returns:
        The evidence, with new births and replays if another operator is the culprit on this
        machine; and a line about the result.
    """
    for file, lines in bundle.recording.lines.items():
        _show_lines(file, lines)
    about = bundle.about
    step = Rerun(bundle.recording, bundle.tensors, about.iteration, about.why, bundle.loss)
    plain = step.plain()
    if plain.note:
        return bundle.evidence, f"the step cannot be run here: {plain.note}"
    if plain.finite:
        return bundle.evidence, (
            f"step {about.iteration} is finite here, where it runs operator by operator without "
            f"compiled code. It was not finite under torch {about.torch} on {about.platform}"
        )
    births, fp32 = step.traced(), step.fp32()
    evidence = bundle.evidence
    culprit = next((each for each in births if each.culprit), None)
    if culprit not in evidence.births:
        replays = [plain, fp32, *([step.at_scale(1.0)] if step.scale != 1 else [])]
        evidence = replace(evidence, births=births, replays=tuple(replays))
    bits = " with the same bits" if plain.same else ""
    born = "" if culprit is None else f"{_born(culprit)}; "
    in_fp32 = "finite" if fp32.finite else "not finite either"
    return evidence, f"step {about.iteration} repeats here{bits}: {born}in fp32 it is {in_fp32}"


def _born(birth: Birth) -> str:
    if birth.phase == "given":
        return f"{birth.value} in {birth.output.name or 'an input'}"
    return f"{birth.value} from {birth.op} {birth.where}"


def _show_lines(file: str, lines: dict[int, str]) -> None:
    """Add source lines to `linecache`, so that they are shown although their file is missing."""
    # The limit protects the memory from a huge line number in a bundle of unknown origin.
    if not linecache.getlines(file) and max(lines, default=MOST_LINES) < MOST_LINES:
        text = [f"{lines.get(number, '')}\n" for number in range(1, max(lines) + 1)]
        linecache.cache[file] = (len(text), None, text, file)
