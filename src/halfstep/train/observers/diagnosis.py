"""Runs doctor in every run: it watches training, and writes a diagnosis if the run fails.

A run gets a diagnosis if it fails because of its loss or an exception, or if a loss, or a gradient
that the optimizer stepped with, was non-finite. A bundle with the failed step is written beside the
diagnosis, if that step can be repeated. Other runs get neither.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from halfstep.doctor import Watch, diagnose
from halfstep.doctor.bundle.files import write_evidence
from halfstep.doctor.record import from_json
from halfstep.doctor.report.show import as_json, print_diagnosis
from halfstep.doctor.saved import is_saved
from halfstep.doctor.verdict import ORDER
from halfstep.errors import UserError
from halfstep.files import write_atomically
from halfstep.train.processes.distributed import Lost
from halfstep.train.processes.processes import FailedElsewhere
from halfstep.train.run.observer import Observer
from halfstep.train.run.signals import Stopped
from halfstep.train.store import diagnosis_file, rotation
from halfstep.train.store.diagnosis_file import RECORD, TEXT
from halfstep.train.task.in_step import Asked

if TYPE_CHECKING:
    from pathlib import Path

    from halfstep.doctor import Diagnosis, Evidence
    from halfstep.train.run.training import Training

_NO_FAULT = (UserError, OSError, FailedElsewhere, Lost, Asked, Stopped)


@dataclass(frozen=True, slots=True)
class Report:
    """The diagnosis of one process.

    Attributes:
        rank: Rank of the process.
        processes: Number of processes of the run.
        since: The step from which doctor watched: 0, or the step that the run was resumed at.
        diagnosis: The verdicts.
        evidence: The evidence that the verdicts rest on.
        bundle: The directory with the failed step; None if there is none.
    """

    rank: int
    processes: int
    since: int
    diagnosis: Diagnosis
    evidence: Evidence
    bundle: Path | None = None

    @property
    def weight(self) -> tuple[int, int]:
        """Sort key: the most confident verdict first, then the lowest rank."""
        verdicts = self.diagnosis.verdicts
        surest = ORDER.index(verdicts[0].finding.confidence) if verdicts else len(ORDER)
        return surest, self.rank

    def show(self, file: TextIO) -> None:
        """Print the report to `file`."""
        if self.processes > 1:
            print(f"of rank {self.rank} of {self.processes}:", file=file)
        print_diagnosis(self.diagnosis, file)
        if self.since:
            print(f"these steps are counted from step {self.since} of the run", file=file)
        if self.bundle is not None:
            print(
                f"halfstep doctor {self.bundle} repeats the step, also on another machine",
                file=file,
            )

    def as_json(self) -> str:
        """Return the report as JSON."""
        record = json.loads(as_json(self.diagnosis, self.evidence))
        place = {"rank": self.rank, "processes": self.processes, "since": self.since}
        return json.dumps({**place, **record}, indent=1) + "\n"


class Doctor(Observer):
    """Watches the training of a run, and writes a diagnosis if the run fails.

    Each process watches itself, and the first process writes the report with the most confident
    verdict. After an exception, which other processes may not know of, each process that raised one
    writes its own report.
    """

    def begin(self, training: Training) -> None:
        """Start to watch, unless another `Watch` is active, which then reports instead."""
        self._training = training
        self._bundle = diagnosis_file.bundle_of(training.run, training.processes.rank)
        self._watch: Watch | None = None
        with suppress(ValueError):
            self._watch = Watch(bundle=diagnosis_file.unfinished(self._bundle)).start()

    def end(self, error: BaseException | None) -> None:
        """Write a diagnosis if the run failed."""
        if self._watch is None:
            return
        try:
            if error is None:
                self._look_back(self._watch)
            elif isinstance(error, Exception) and not isinstance(error, _NO_FAULT):
                self._explain(self._watch, error)
        finally:
            self._watch.abandon()
            shutil.rmtree(diagnosis_file.unfinished(self._bundle), ignore_errors=True)

    def _look_back(self, watch: Watch) -> None:
        progress, processes = self._training.progress, self._training.processes
        failed = progress.status != "finished" or progress.first_nonfinite_step is not None
        if processes.any(failed or watch.saw_nonfinite):
            reports = processes.gather(self._report(watch))
            if reports:
                _leave(self._training.run, min(reports, key=lambda report: report.weight), name="")

    def _explain(self, watch: Watch, error: Exception) -> None:
        watch.note_ending(error)
        rank = self._training.processes.rank
        report = self._report(watch)
        _leave(self._training.run, report, name=f"-{rank}" if rank else "")
        report.show(sys.stderr)  # The exception's own traceback follows.

    def _report(self, watch: Watch) -> Report:
        evidence = watch.close()
        processes, since = self._training.processes, self._training.resumed_at or 0
        kept = self._bundle if _keep(self._bundle, evidence) else None
        return Report(processes.rank, processes.size, since, diagnose(evidence), evidence, kept)


def _keep(bundle: Path, evidence: Evidence) -> bool:
    """Make the failed step, if it was written, the run's bundle; return whether that succeeded."""
    written = diagnosis_file.unfinished(bundle)
    if not is_saved(written):
        return False
    try:
        write_evidence(written, evidence)
        written.rename(bundle)
    except OSError as error:
        rotation.warn(f"the failed step could not be saved: {error.strerror or error}")
        return False
    return True


def _leave(run: Path, report: Report, name: str) -> None:
    text = io.StringIO()
    report.show(text)
    try:
        for file, content in ((RECORD, report.as_json()), (TEXT, text.getvalue())):
            stem, _, ending = file.partition(".")
            write_atomically(run / f"{stem}{name}.{ending}", content)
    except OSError as error:
        rotation.warn(f"the diagnosis could not be written: {error.strerror or error}")


def read(run: Path) -> Report | None:
    """Return the report in a run directory; None if there is none."""
    report = diagnosis_file.read(run)
    if report is None:
        return None
    try:
        evidence = from_json(json.dumps(report["evidence"]))
    except ValueError as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"{str(run / RECORD)!r} is of another version of halfstep ({reason}); read {TEXT} in "
            "the same directory instead"
        ) from error
    place: dict[str, Any] = {name: report.get(name, 0) for name in ("rank", "processes", "since")}
    bundle = diagnosis_file.bundle_of(run, place["rank"])
    return Report(
        **place,
        diagnosis=diagnose(evidence),
        evidence=evidence,
        bundle=bundle if bundle.is_dir() else None,
    )
