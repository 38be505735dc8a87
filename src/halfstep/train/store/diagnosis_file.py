"""The files of doctor's diagnosis in the directory of a failed run.

    diagnosis.json    the verdicts and their evidence
    diagnosis.txt     the same as text for a reader, at most one screen
    bundle/           the failed step; `halfstep doctor RUN/bundle` repeats it on any machine

Processes other than the first append their rank: `diagnosis-1.json` and `diagnosis-1.txt` after an
exception, `bundle-1` for a failed step.

Reading the diagnosis requires neither torch nor doctor.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from halfstep.errors import UserError
from halfstep.files import parse_json

RECORD = "diagnosis.json"
TEXT = "diagnosis.txt"
BUNDLE = "bundle"


def read(run: Path) -> dict[str, Any] | None:
    """Return the content of a run's diagnosis file; None if the run has no diagnosis."""
    file = next((path for path in files(run) if path.suffix == ".json"), None)
    if file is None:
        return None
    try:
        content = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {str(file)!r}: {error}") from error
    if not (isinstance(content, dict) and {"diagnosis", "evidence"} <= content.keys()):
        raise UserError(f"{str(file)!r} holds no diagnosis; remove it to have the run looked at")
    return content


def in_a_line(run: Path) -> str | None:
    """Return the first verdict of a run's diagnosis in one line; None if there is no verdict."""
    try:
        content = read(run)
        verdicts = content["diagnosis"]["verdicts"] if content else []
        if not verdicts:
            return None
        first = verdicts[0]
        return f"{first['code']}: {first['finding']['summary']}"
    except (UserError, KeyError, TypeError, IndexError):
        return None  # The line only explains a figure, which is shown without it, too.


def remove(run: Path) -> None:
    """Remove the diagnoses and bundles that the run left before it was resumed or replaced."""
    for file in files(run):
        file.unlink(missing_ok=True)
    for bundle in (*bundles(run), *run.glob(f".{BUNDLE}*")):
        shutil.rmtree(bundle, ignore_errors=True)


def bundle_of(run: Path, rank: int) -> Path:
    """Return the directory of a process's bundle, which contains the failed step."""
    return run / (f"{BUNDLE}-{rank}" if rank else BUNDLE)


def unfinished(bundle: Path) -> Path:
    """Return the hidden directory that contains a bundle until the run is known to have failed."""
    return bundle.with_name(f".{bundle.name}")


def bundles(run: Path) -> list[Path]:
    """Return the bundle directories of a run; that of the first process comes first."""
    return sorted(path for path in run.glob(f"{BUNDLE}*") if path.is_dir())


def files(run: Path) -> list[Path]:
    """Return the diagnosis files of a run; those of the first process come first."""
    named = [run / name for name in (RECORD, TEXT)]
    return [*filter(Path.is_file, named), *sorted(run.glob("diagnosis-*.*"))]
