"""The run directory: its name, its lock, and its summary.

    runs/digits/fp16-seed0/
        config.yaml  environment.json  metrics.jsonl  log.txt  tensorboard/  checkpoints/
        classes.csv  confusion.csv  summary.json

`summary.json` is written last: a directory without it contains a run that did not finish. Only one
run at a time may write into the directory; see `lock`.
"""

from __future__ import annotations

import errno
import re
import warnings
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from halfstep import caller
from halfstep.errors import UserError
from halfstep.files import json_text, parse_json, write_atomically
from halfstep.train.config.files import resolved
from halfstep.train.store import diagnosis_file, links, replaced
from halfstep.train.store.lock import LockWarning, locked
from halfstep.yaml_text import parse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.train.config.run import RunConfig

AUTO = "auto"
"""The value of `--resume` for the newest complete checkpoint in the run directory."""
Status = Literal["finished", "nonfinite", "collapsed"]


@dataclass(frozen=True, slots=True)
class Summary:
    """The results of a run. Validation results are None if no epoch was validated.

    Attributes:
        status: "finished"; "nonfinite" if a non-finite loss ended the run, or the last validation
            loss is non-finite; or "collapsed" if the loss scale collapsed.
        tag: The tag that the user gave the run, if any.
        best_accuracy: Highest validation accuracy, 0 to 1.
        best_epoch: The first epoch with the best value of `monitor`, counted from 1.
        final_accuracy: Accuracy of the last validation.
        final_val_loss: Loss of the last validation.
        best_accuracy_top5: Top-5 validation accuracy of the best epoch, 0 to 1; None with five
            classes or fewer.
        final_accuracy_top5: Top-5 accuracy of the last validation.
        train_seconds: Training time, without validation and file access.
        wall_seconds: Time from reading the data to the end. For a resumed run, this and
            `train_seconds` also include the time before it was resumed, up to the checkpoint that
            it was resumed from.
        images_per_second: Number of training images divided by `train_seconds`.
        peak_memory_bytes: Peak memory of the kind in `peak_memory_kind`.
        peak_memory_kind: "device" for GPU memory, or "resident-rise" for the growth of the
            process's resident memory during training.
        peak_memory_reserved_bytes: Peak GPU memory that torch reserved; None on a CPU.
        step_seconds_median: Median time of an optimizer step. Not counted: the first three steps of
            a process, the first step of each epoch and after each checkpoint, and steps before the
            last resume.
        step_seconds_p95: 95th percentile of the same step times.
        energy_joules: Energy of the GPUs during the run, including other programs on them; None
            without NVML's energy counter, for a resumed run, and for `distributed.strategy: dp`.
        skipped_steps: Number of optimizer steps without effect: skipped for a non-finite gradient,
            vetoed by an observer (for example for a non-finite loss), or undone by a rollback.
        first_nonfinite_step: The first optimizer step with a non-finite loss, counted from 1.
        steps: Number of optimizer steps, including skipped ones.
        epochs: Number of finished epochs, including one that `max_steps` cut short.
        device: The device that trained the run.
        error: Why the run failed, in one line.
        note: Why the run stopped before its last epoch without failing, in one line.
        rehearsed: What the device emulated and why, one line each.
        loss_scales: The initial loss scale, at step 0, and each change: the step and the new scale.
        checkpoint_bytes: Size of a checkpoint.
        formats: With `probes: true` in the config: FLOPs of a micro-batch, the share of them
            in each number format, and the layers that do not compute in the recipe's format.
        held_bytes: With `probes: true`: bytes of parameters, gradients, optimizer state and saved
            activations in a step.
        newest: With `probes: true`: the results of the last probe, which compares the gradients
            with fp32.
        unchanged_share: With `probes: true`: the share of weights that a step left unchanged: the
            average over the probes. There is one probe at the end of each epoch.
        processes: Number of processes that trained the run.
        core_wait_share: Time that the process's threads waited for a core, as a share of the time
            in which they could have run, 0 to 1; None if the kernel does not report it.
        val_images: Number of validation images.
        best_metrics: The loss, and every metric that a checkpoint keeps, of the best validation.
        final_metrics: The same of the last validation.
        monitor: The metric by which the best validation was chosen.
        observed: The summary fields of the user's own observers.
    """

    status: Status
    config: str
    tag: str | None
    recipe: str
    seed: int
    best_accuracy: float | None
    best_epoch: int | None
    final_accuracy: float | None
    final_val_loss: float | None
    best_accuracy_top5: float | None
    final_accuracy_top5: float | None
    train_seconds: float
    wall_seconds: float
    images_per_second: float
    peak_memory_bytes: int
    peak_memory_kind: str
    peak_memory_reserved_bytes: int | None
    step_seconds_median: float | None
    step_seconds_p95: float | None
    energy_joules: float | None
    skipped_steps: int
    first_nonfinite_step: int | None
    steps: int
    epochs: int
    device: str
    error: str | None
    note: str | None = None
    rehearsed: list[str] = field(default_factory=list)
    loss_scales: list[list[float]] = field(default_factory=list)
    checkpoint_bytes: int | None = None
    formats: dict[str, Any] | None = None
    held_bytes: dict[str, int | None] | None = None
    newest: dict[str, float] = field(default_factory=dict)
    unchanged_share: float | None = None
    processes: int = 1
    core_wait_share: float | None = None
    val_images: int | None = None
    best_metrics: dict[str, float] = field(default_factory=dict)
    final_metrics: dict[str, float] = field(default_factory=dict)
    monitor: str = "accuracy"
    observed: dict[str, Any] = field(default_factory=dict)


def place(config: RunConfig, tag: str | None = None, root: Path = Path("runs")) -> Path:
    """Return the run directory of a config: `runs/<config>/<tag, or recipe-seedN>`.

    Raises:
        UserError: If the tag cannot name a folder.
    """
    if tag is not None and not re.fullmatch(r"[\w+-][\w.+-]*", tag):
        raise UserError(
            f"{caller.name('tag')} is {tag!r}; allowed: letters, digits and . _ + -; write "
            f"{caller.setting(tag='baseline')}"
        )
    recipe_name = re.sub(r"[^\w.+-]", "_", config.build_recipe().name)
    return root / config.name / (tag or f"{recipe_name}-seed{config.seed}")


@contextmanager
def claimed(run: Path, *, patience: float = 0.0) -> Iterator[None]:
    """Lock a run directory against other processes while the block runs; create it if needed.

    Args:
        run: The run directory.
        patience: Seconds to wait for another process that trains in the directory.

    Raises:
        UserError: If another process trains in the directory, if the directory contains files that
            are not of a run or a symbolic link that leads out of it, or if it cannot be written.
    """
    _refuse_foreign(run)
    links.refuse(run, _own_names(run))
    with ExitStack() as stack:
        with explained(run):
            stack.enter_context(locked(run, partial(_in_use, run), patience=patience))
        yield


def _in_use(run: Path, holder: str) -> str:
    return (
        f"{str(run)!r} is in use: {holder} trains in it; wait for it, end it, or write "
        f"{caller.name('tag')} or {caller.name('out')} with a new name"
    )


def decide(
    run: Path, config: RunConfig, *, resume: str | None, overwrite: bool, processes: int
) -> Summary | None:
    """Decide from the run directory alone, without torch, whether there is a run to train.

    Args:
        run: The run directory.
        config: The config of the run.
        resume: The argument `resume` of `halfstep.train`.
        overwrite: Whether the run may replace an earlier one.
        processes: Number of processes that are to train the run.

    Returns:
        The summary if the run is to be resumed and is over: it has finished, with checkpoints, with
        exactly this config and as many processes. None if the run has to start or to continue.

    Raises:
        UserError: If the directory cannot be used for the run, as in `claimed` and
            `refuse_to_replace`, or if the path to resume from does not exist.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LockWarning)  # the run locks the directory again
        with claimed(run):
            if resume is None and not overwrite:
                refuse_to_replace(run, config, auto=False)
            if resume == AUTO and _is_of(run, config) and replaced.holds_checkpoints(run):
                summary = finished(run)
                return summary if summary and summary.processes == processes else None
    if resume not in {None, AUTO}:
        refuse_missing(resume)
    return None


def refuse_missing(resume: str) -> None:
    """Refuse a path to resume from that does not exist."""
    if not (Path(resume).is_file() or Path(resume).is_dir()):
        raise UserError(
            f"{caller.name('resume')} is {resume!r}, which does not exist; allowed: auto, a "
            "checkpoint's path, or a run directory"
        )


def refuse_to_replace(run: Path, config: RunConfig, *, auto: bool) -> None:
    """Refuse to start a new run in a directory whose earlier run would be lost.

    Args:
        run: The run directory.
        config: The config of the new run.
        auto: Whether the user wrote `resume="auto"`, but the directory has nothing to resume from.

    Raises:
        UserError: If the earlier run has checkpoints, or a summary. With `auto`, the summary of a
            run of the same config does not count.
    """
    finished, same = (run / "summary.json").is_file(), _is_of(run, config)
    if not replaced.holds_checkpoints(run) and (not finished or (auto and same)):
        return
    held = "a finished run" if finished else "the checkpoints of a run that has not finished"
    use = "take its result" if finished else "continue it"
    go_on = f"{caller.setting(resume='auto')} to {use}, " if same and not auto else ""
    raise UserError(
        f"the run directory {str(run.absolute())!r} holds {held}"
        f"{'' if same else ' of another config'}; write {go_on}{caller.name('out')} with another "
        f"directory to keep both, or {caller.setting(overwrite=True)} to replace it"
    )


def _is_of(run: Path, config: RunConfig) -> bool:
    """Tell whether the run in a directory was started with exactly this config."""
    file = run / "config.yaml"
    try:
        theirs = parse(file.read_text(encoding="utf-8"), str(file))
    except (OSError, ValueError):
        return False
    return bool(theirs == parse(resolved(config), "config"))


def prepare(
    run: Path, config: RunConfig, environment: dict[str, Any], *, goes_on: bool = False
) -> None:
    """Prepare the directory for a run: replace an earlier run, and write config and environment.

    If the run `goes_on`, its files are kept, except its summary and diagnosis.

    Raises:
        UserError: If the directory cannot be written, or contains files that are not of a run. Its
            content is unchanged then.
    """
    _refuse_foreign(run)
    with explained(run):
        run.mkdir(parents=True, exist_ok=True)
        write_atomically(run / ".writable", b"")
        (run / ".writable").unlink()
        if not goes_on:
            replaced.make_way(run)
        try:
            write_atomically(run / "config.yaml", resolved(config))
            write_atomically(run / "environment.json", json_text(environment, indent=2) + "\n")
        except OSError:
            if not goes_on:
                replaced.put_back(run)
            raise
        (run / "summary.json").unlink(missing_ok=True)
        diagnosis_file.remove(run)


@contextmanager
def explained(run: Path) -> Iterator[None]:
    """Turn an OSError of writing the run directory into a UserError that says what to do."""
    try:
        yield
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        raise UserError(
            f"cannot write the run directory {str(run)!r}: {error.strerror or error}; "
            f"{'make room, or ' if full else ''}write {caller.name('out')} with a directory that "
            "you may write to"
        ) from error


def _refuse_foreign(run: Path) -> None:
    """Refuse a directory that contains files but no run, because a run could remove the files."""
    if not run.is_dir() or (run / "config.yaml").is_file():
        return
    # Hidden names are the lock, and temporary files of a run that was killed in its first write.
    names = (path.name for path in run.iterdir())
    link = next(
        (name for name in names if name != replaced.FOLDER and not name.startswith(".")), None
    )
    if link is not None:
        raise UserError(
            f"{str(run)!r} holds {link!r} but no run; write {caller.name('out')} with a new or "
            "empty directory"
        )


def _own_names(run: Path) -> list[Path]:
    """Return the existing paths in the directory that a run may write to."""
    if not run.is_dir():
        return []
    names = {*replaced.LEFT_BY_A_RUN, replaced.FOLDER}
    marked = re.compile(rf"\.lock|(diagnosis|\.?{diagnosis_file.BUNDLE})(-\d+)?(\.\w+)?")
    own = [path for path in run.iterdir() if path.name in names or marked.fullmatch(path.name)]
    # W&B creates links in its folder; nothing is written into the replaced run.
    not_looked_into = {"wandb", replaced.FOLDER}
    return [path for path in own if path.is_symlink() or path.name not in not_looked_into]


def write_summary(run: Path, summary: Summary) -> None:
    """Write the summary, which marks the run as over."""
    write_atomically(run / "summary.json", json_text(asdict(summary), indent=2) + "\n")


def read_summary(run: Path) -> dict[str, Any] | None:
    """Return the summary of a run, or None if the run is not over."""
    file = run / "summary.json"
    try:
        summary = parse_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {str(file)!r}: {error}") from error
    if not isinstance(summary, dict):
        raise UserError(f"{str(file)!r} holds no summary of a run")
    return summary


def finished(run: Path) -> Summary | None:
    """Return the summary of a run with the status "finished"; None for other runs.

    Unknown fields in the summary of another release are ignored.
    """
    summary = read_summary(run)
    if summary is None or summary.get("status") != "finished":
        return None
    known = {name: summary[name] for name in Summary.__dataclass_fields__ if name in summary}
    try:
        return Summary(**known)
    except TypeError:  # a required field is missing
        return None
