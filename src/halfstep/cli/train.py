"""`halfstep train CONFIG`: one run of one config under one recipe and seed."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from halfstep.cli.overrides import BatchSizeFlag, EpochsFlag, LrFlag, OptionsFlag, overrides
from halfstep.cli.start_up import without_collections
from halfstep.errors import UserError
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.train.config import Config
    from halfstep.train.processes.processes import Processes
    from halfstep.train.store.run_directory import Summary

_BY_SIGNAL = 128
"""After signal N, the exit code is this plus N, as in a shell."""
_INTERRUPTED = 130
_BAD_RESULT = 1
_BAD_INPUT = 2

ColumnsFlag = Annotated[
    str | None,
    typer.Option(
        metavar="image=NAME,label=NAME",
        help="Column names of the CSV file, if they are not image and label.",
    ),
]
DeviceFlag = Annotated[
    str | None, typer.Option(metavar="auto|cpu|cuda[:N]", help="Device to run on; default: auto.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("train", short_help="Train one config under one recipe and seed.")(train)


def train(  # noqa: PLR0913, PLR0917  (a flag each)
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="Name of a shipped config, or a YAML file.")
    ],
    tag: Annotated[
        str | None,
        typer.Option(help="Last part of the run directory's name; default: recipe and seed."),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="A recipe, or several joined with '+'; see halfstep recipes.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed for the initial weights and the order of the images.")
    ] = None,
    device: DeviceFlag = None,
    out: Annotated[
        Path | None, typer.Option(help="The run directory; default: runs/CONFIG/TAG.")
    ] = None,
    epochs: EpochsFlag = None,
    lr: LrFlag = None,
    batch_size: BatchSizeFlag = None,
    options: OptionsFlag = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a run that is already in the directory.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no progress.")] = False,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="auto|PATH",
            help="Resume from the newest complete checkpoint of the run, if there is one (auto), "
            "or from the given checkpoint or run directory.",
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Train in N processes on this machine, each with batch_size images.",
        ),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Train on N GPUs; short for --processes N --device cuda."
        ),
    ] = None,
    max_restarts: Annotated[
        int,
        typer.Option(
            min=0,
            help="Maximum number of restarts: if a process dies, all processes restart from the "
            "newest checkpoint.",
        ),
    ] = 0,
) -> None:
    """Train CONFIG and write a run directory with config, metrics, checkpoints and summary.

    Exit codes: 1 if a non-finite loss or a collapsed loss scale ended the run; 130 after Ctrl-C,
    143 after SIGTERM and 138 after SIGUSR1. After each of these signals, a checkpoint is written
    first, from which --resume continues. A second Ctrl-C ends the run at once.
    """
    from halfstep.train.processes.launch import end_with_launcher

    end_with_launcher()
    if gpus is not None:
        if processes not in {None, gpus}:
            raise UserError(f"--gpus is {gpus} and --processes {processes}; write one of them")
        processes, device = gpus, device or "cuda"
    changes = overrides(options, epochs=epochs, lr=lr, batch_size=batch_size)
    flags = {"recipe": recipe, "seed": seed, "device": device}
    chosen, run = _find(config, changes, flags, tag, out)
    if max_restarts and processes is None:
        raise UserError(
            f"--max-restarts is {max_restarts} without --processes; write --processes 1, or "
            "torchrun --max-restarts"
        )
    over = _decide(chosen, run, resume, overwrite=overwrite, processes=processes or 1)
    if over is not None:
        _tell(over, run)
        return
    if processes is not None:
        given = {**flags, "tag": tag, "out": out, "resume": resume}
        switches = [*(["--overwrite"] if overwrite else []), *(["--quiet"] if quiet else [])]
        arguments = ["train", config, *switches, *_as_arguments(given, changes)]
        raise typer.Exit(_launched(arguments, processes, max_restarts, chosen.device))
    _train_here(chosen, run, tag=tag, overwrite=overwrite, quiet=quiet, resume=resume)


def _find(
    config: str, options: list[str], flags: dict[str, Any], tag: str | None, out: Path | None
) -> tuple["Config", Path]:
    from halfstep.train.config import files as config_files
    from halfstep.train.store import run_directory

    try:
        chosen = config_files.load(config, options, flags)
        return chosen, out or run_directory.place(chosen, tag)
    except ValueError:
        if os.environ.get("LOCAL_RANK", "0") != "0":
            # Another process of torchrun on this machine prints the error.
            raise typer.Exit(_BAD_INPUT) from None
        raise


def _decide(
    chosen: "Config", run: Path, resume: str | None, *, overwrite: bool, processes: int
) -> "Summary | None":
    """Decide, before torch is imported, whether there is a run to train; see `run_directory`."""
    from halfstep.train.store import run_directory

    if "RANK" in os.environ:  # the processes of torchrun decide together, and may be restarted
        return None
    return run_directory.decide(
        run, chosen, resume=resume, overwrite=overwrite, processes=processes
    )


def _as_arguments(given: dict[str, Any], options: list[str]) -> list[str]:
    """Return options as command-line arguments."""
    named = [(f"--{name}", str(value)) for name, value in given.items() if value is not None]
    return [word for pair in (*named, *(("--options", o) for o in options)) for word in pair]


def _launched(arguments: list[str], processes: int, max_restarts: int, device: str) -> int:
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise UserError(
            f"--processes is {processes}, but torchrun has started this process; leave --processes "
            "out, and write torchrun --nproc-per-node"
        )
    from halfstep.train.processes.distributed import refuse_too_few_gpus
    from halfstep.train.processes.launch import launch

    refuse_too_few_gpus(device, processes)  # here, so that not every process prints the error
    return launch(arguments, processes=processes, max_restarts=max_restarts)


def _train_here(
    chosen: "Config",
    run: Path,
    *,
    tag: str | None,
    overwrite: bool,
    quiet: bool,
    resume: str | None,
) -> None:
    """Train in this process, which may be one of several processes of the run."""
    with without_collections():
        from halfstep.train.loop.loop import train as train_run
        from halfstep.train.processes import distributed
        from halfstep.train.processes.launch import is_over

    if is_over():
        return
    if distributed.restarts() and distributed.began(run):
        resume = "auto"
    with (
        _ending_as_one(),
        distributed.joined(chosen.device, chosen.distributed.timeout) as processes,
    ):
        _hush(processes)
        summary = train_run(
            chosen,
            run,
            tag=tag,
            overwrite=overwrite,
            quiet=quiet,
            go_on=resume,
            processes=processes,
        )
    _tell(summary, run)


def _tell(summary: "Summary", run: Path) -> None:
    """Print the results of a run; raise the exit if it has failed."""
    if _speaks():
        typer.echo(_report(summary, run))
    if summary.status != "finished":
        message = f"{summary.status}: {summary.error} (the run is in {str(run)!r})"
        ended = _ended(message, _BAD_RESULT)
        _say_why(run)
        raise ended
    if summary.first_nonfinite_step is not None and _speaks():
        typer.echo(_what_was_met(summary.first_nonfinite_step, run), err=True)


def _say_why(run: Path) -> None:
    """Print doctor's diagnosis of a run that has failed."""
    from halfstep.train.observers import diagnosis

    diagnosed = diagnosis.read(run) if _speaks() else None
    if diagnosed is not None:
        diagnosed.show(sys.stderr)


def _what_was_met(step: int, run: Path) -> str:
    from halfstep.train.store import diagnosis_file

    why = diagnosis_file.in_a_line(run)
    return f"the loss was not finite at step {step}, and training went on" + (
        f"; {why} (halfstep doctor {run} says more)" if why else ""
    )


@contextmanager
def _ending_as_one() -> Iterator[None]:
    """Turn the end of a run into an exit code, the same for all processes; only one prints why."""
    from halfstep.train.processes.distributed import Lost
    from halfstep.train.processes.launch import is_over, leave_outcome
    from halfstep.train.processes.processes import FailedElsewhere
    from halfstep.train.run.signals import Stopped

    try:
        yield
    except Stopped as stopped:
        raise _ended(stopped, _BY_SIGNAL + stopped.number) from None
    except KeyboardInterrupt:
        leave_outcome(_INTERRUPTED)
        if _speaks():
            raise
        raise typer.Exit(_INTERRUPTED) from None
    except FailedElsewhere as failed:
        raise typer.Exit(failed.code) from None
    except Lost as lost:
        # No outcome is written, because torchrun may restart all processes.
        if str(lost) and not is_over():
            typer.echo(str(lost), err=True)
        raise typer.Exit(_BAD_RESULT) from None
    except (ValueError, OSError):
        leave_outcome(_BAD_INPUT)
        raise


def _speaks() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _ended(line: object, code: int) -> typer.Exit:
    """Print the reason of an end without a restart, and return the exit with its code."""
    from halfstep.train.processes.launch import leave_outcome

    leave_outcome(code)
    if _speaks():
        typer.echo(str(line), err=True)
    return typer.Exit(code)


def _hush(processes: "Processes") -> None:
    """Suppress warnings in all processes except the first; keep warnings about images."""
    from halfstep.train.data.sources.faults import DataWarning

    if not processes.is_first:
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", DataWarning)


def _report(summary: "Summary", run: Path) -> str:
    memory = f"{summary.peak_memory_bytes / 2**20:.0f} MiB ({summary.peak_memory_kind})"
    accuracy = (
        "no epoch finished"
        if summary.best_accuracy is None
        else f"best accuracy {summary.best_accuracy:.2%} (epoch {summary.best_epoch}), "
        f"final {summary.final_accuracy:.2%}"
    )
    note = f"\n{summary.note}" if summary.note else ""
    return (
        f"{summary.config} {summary.recipe} seed {summary.seed}: {accuracy}; trained "
        f"{summary.train_seconds:.1f} s at {summary.images_per_second:.0f} images/s, {memory}, "
        f"{counted(summary.skipped_steps, 'skipped step')}{note}\nrun: {run}"
    )
