"""`halfstep doctor [--report DIR] script.py ...`: says why a training program, or a run, broke."""

import importlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from halfstep.errors import UserError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "doctor",
        short_help="Watch a training program, and say why it broke.",
        context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True},
    )(doctor)


def doctor(
    program: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT|-m MODULE|RUN|BUNDLE [ARGUMENTS]",
            help="The program, as after `python`; the directory of a run of halfstep train; or "
            "what --report has left.",
        ),
    ] = None,
    *,
    report: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Leave the diagnosis and a bundle in this directory."),
    ] = None,
    hold_back: Annotated[
        bool,
        typer.Option(
            "--hold-back",
            help="Let fused optimizers skip steps that are not finite. This changes results.",
        ),
    ] = False,
    import_: Annotated[
        list[str] | None,
        typer.Option(
            "--import", metavar="MODULE", help="Import a library whose operators a bundle calls."
        ),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Print the causes that are known, and stop.")
    ] = False,
) -> None:
    """Run a PyTorch training program as it is, and say why it broke.

    The program's own output, exit code and exception stay as they are; the diagnosis follows on
    stderr. Given a run's directory, say why that run went wrong: what it left is printed, and a run
    that left nothing is trained again from its last checkpoint before the failure, in a scratch
    copy.
    """
    if list_:
        from halfstep.doctor.rules import rules

        for rule in rules():
            typer.echo(f"{rule.code:<32} {rule.name}  ({', '.join(rule.citations)})")
        return
    if program and len(program) == 1 and (Path(program[0]) / "config.yaml").is_file():
        from halfstep.train.after.reexamine import explain

        explain(Path(program[0]), sys.stdout, report=report)
        return
    for name in import_ or []:
        _import(name)
    from halfstep.doctor.program import run_program
    from halfstep.show.diagnosis import page

    if code := run_program(program or [], report, hold_back=hold_back, page=page):
        raise typer.Exit(code)


def _import(name: str) -> None:
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"--import {name}: {error}; install it, or leave it out") from error
