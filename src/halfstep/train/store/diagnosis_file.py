"""The diagnosis that doctor leaves in the directory of a run that went wrong.

    diagnosis.json    the verdicts, and the evidence that they rest on
    diagnosis.txt     the same to be read, at most a screenful
    bundle/           the step that went bad, for `halfstep doctor RUN/bundle` here or elsewhere

Of several processes, one other than the first writes `diagnosis-1.json` after an exception, and
`bundle-1` where the step was its own.

Reading them takes neither torch nor doctor.
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
    """Return the record of a diagnosis; None where a run has left none."""
    file = next((each for each in files(run) if each.suffix == ".json"), None)
    if file is None:
        return None
    try:
        found = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {str(file)!r}: {error}") from error
    if not (isinstance(found, dict) and {"diagnosis", "evidence"} <= found.keys()):
        raise UserError(f"{str(file)!r} holds no diagnosis; remove it to have the run looked at")
    return found


def in_a_line(run: Path) -> str | None:
    """Return the first cause in a line; None where a run has left no diagnosis that names one."""
    try:
        found = read(run)
        verdicts = found["diagnosis"]["verdicts"] if found else []
        if not verdicts:
            return None
        first = verdicts[0]
        return f"{first['code']}: {first['finding']['summary']}"
    except (UserError, KeyError, TypeError, IndexError):
        return None  # It explains a figure; the figure stands without it.


def remove(run: Path) -> None:
    """Remove what an earlier part of a run has left."""
    for file in files(run):
        file.unlink(missing_ok=True)
    for bundle in (*bundles(run), *run.glob(f".{BUNDLE}*")):
        shutil.rmtree(bundle, ignore_errors=True)


def bundle_of(run: Path, rank: int) -> Path:
    """Return the directory of a process's bundle: the step that went bad."""
    return run / (f"{BUNDLE}-{rank}" if rank else BUNDLE)


def unfinished(bundle: Path) -> Path:
    """Return the hidden directory of a bundle until the run is known to have gone wrong."""
    return bundle.with_name(f".{bundle.name}")


def bundles(run: Path) -> list[Path]:
    """Return the bundles that a run has left, the first process's first."""
    return sorted(each for each in run.glob(f"{BUNDLE}*") if each.is_dir())


def files(run: Path) -> list[Path]:
    """Return what a run has left, the first process's before that of others."""
    named = [run / name for name in (RECORD, TEXT)]
    return [*filter(Path.is_file, named), *sorted(run.glob("diagnosis-*.*"))]
