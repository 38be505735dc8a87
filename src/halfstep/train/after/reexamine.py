"""Diagnoses a failed run that has no diagnosis: trains its last steps again with doctor.

Runs resume bitwise, so that training from the newest checkpoint before the failure leads to the
same failure. This training uses a scratch directory; the directory of the run is only read.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from halfstep.errors import UserError
from halfstep.train.config import files as config_files
from halfstep.train.loop.loop import train
from halfstep.train.observers import diagnosis
from halfstep.train.store import checkpoint, diagnosis_file, rotation, run_directory

if TYPE_CHECKING:
    from typing import TextIO

    from halfstep.train.observers.diagnosis import Report


def explain(run: Path, file: TextIO, *, report: Path | None = None) -> None:
    """Print why a run failed, from its diagnosis or by training its end again.

    The run is not changed. `report` is a directory to which the files of the diagnosis are copied.

    Raises:
        UserError: If the directory does not hold a run, if the run did not fail, or if it cannot be
            trained again on this machine.
    """
    with TemporaryDirectory(prefix="halfstep-doctor-") as scratch:
        at = run
        diagnosed = diagnosis.read(run)
        if diagnosed is None:
            at = Path(scratch) / "run"
            diagnosed = _again(run, at, file)
        if report is not None:
            diagnosed = _copied(diagnosed, at, report)
        elif at != run:
            diagnosed = replace(diagnosed, bundle=None)  # It is deleted with the scratch directory.
        diagnosed.show(file)


def _copied(diagnosed: Report, run: Path, report: Path) -> Report:
    """Copy the diagnosis files of a run to the directory `report`."""
    report.mkdir(parents=True, exist_ok=True)
    for file in diagnosis_file.files(run):
        shutil.copy2(file, report / file.name)
    for file in diagnosis_file.bundles(run):
        shutil.copytree(file, report / file.name, dirs_exist_ok=True)
    return (
        diagnosed
        if diagnosed.bundle is None
        else replace(diagnosed, bundle=report / diagnosed.bundle.name)
    )


def _again(run: Path, scratch: Path, file: TextIO) -> Report:
    """Train the end of a run again, and return doctor's diagnosis."""
    if not (run / "config.yaml").is_file():
        raise UserError(
            f"{str(run)!r} holds no run; write the directory of a run, such as "
            "runs/digits/fp16-seed0, or the path of a script"
        )
    summary = run_directory.read_summary(run)
    failed_at = None if summary is None else _failed_at(summary, run)
    config = config_files.load(str(run / "config.yaml"))
    config = config.model_copy(update={"doctor": True, "tracking": ()})
    start = _before(run, failed_at)
    whence = "from its beginning" if start is None else f"from {start.name}"
    print(f"{run} has left no diagnosis: training again {whence}, in a scratch copy", file=file)
    error: Exception | None = None
    try:
        train(config, scratch, go_on=None if start is None else str(start), quiet=True)
    except UserError:
        raise
    except Exception as raised:  # noqa: BLE001  # the run's own, which is what is to be explained
        error = raised
    diagnosed = diagnosis.read(scratch)
    if diagnosed is not None:
        return diagnosed
    if error is not None:
        raise error
    raise UserError(f"{str(run)!r} finished this time: every loss was finite")


def _failed_at(summary: dict[str, Any], run: Path) -> int:
    """Return the step at which a run began to fail."""
    first = summary.get("first_nonfinite_step")
    if first is not None:
        return int(first)
    if summary.get("status") == "finished":
        raise UserError(
            f"the run in {str(run)!r} has finished, and every loss was finite: there is nothing "
            "to explain"
        )
    step = int(summary["steps"])
    # A collapsed loss scale has decreased at each of the last steps; return the first of them.
    for at, *_ in reversed(summary.get("loss_scales") or []):
        if int(at) < step - 1:
            break
        step = int(at)
    return step


def _before(run: Path, failed_at: int | None) -> Path | None:
    """Return the newest undamaged checkpoint before step `failed_at`; None if there is none."""
    for file in rotation.newest_first(run):
        try:
            stored = checkpoint.look_into(file)
        except UserError:
            continue
        if failed_at is None or stored.step < failed_at:
            return file
    return None
