"""`halfstep doctor [--report DIR] script.py ...`: explains why a program or a run broke."""

import importlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from halfstep.errors import UserError, closest


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "doctor",
        short_help="Watch a training program and explain why it broke.",
        context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True},
    )(doctor)


def doctor(
    program: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT|-m MODULE|RUN|BUNDLE [ARGUMENTS]",
            help="A program with its arguments, as after `python`; a run directory of halfstep "
            "train; or a bundle, which --report or halfstep train wrote.",
        ),
    ] = None,
    *,
    report: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the diagnosis and a bundle to this directory."),
    ] = None,
    hold_back: Annotated[
        bool,
        typer.Option(
            "--hold-back",
            help="Let fused optimizers skip a step if its loss or gradients are non-finite, also "
            "without a gradient scaler. This changes results.",
        ),
    ] = False,
    import_: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE",
            help="Library to import first, if a bundle calls its operators.",
        ),
    ] = None,
    list_: Annotated[
        bool,
        typer.Option(
            "--list",
            help="Explain all causes that doctor knows, or those whose codes you write after it.",
        ),
    ] = False,
) -> None:
    """Run an unchanged PyTorch training program and explain why it broke.

    The program keeps its output, exit code and exception. The diagnosis is printed to stderr.
    Write options of doctor before the program; the program receives what follows it.

    For a run directory, doctor prints to stdout the diagnosis that the run saved. If there is none,
    it repeats the training from the last checkpoint before the failure, in a temporary copy.
    """
    if list_:
        from halfstep.doctor.rules import rules

        codes = [rule.code for rule in rules()]
        for given in program or []:
            if given not in codes:
                raise UserError(
                    f"no cause has the code {given!r}; halfstep doctor --list prints all codes"
                    f"{closest(given, codes)}"
                )
        for rule in rules():
            if not program or rule.code in program:
                typer.echo(f"{rule.code:<32} {rule.name}")
                typer.echo(f"    {rule.about}")
                typer.echo(f"    reported in {', '.join(rule.citations)}")
        return
    if program and (Path(program[0]) / "config.yaml").is_file():
        from halfstep.doctor.program import refuse_arguments

        refuse_arguments(program)
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
        raise UserError(
            f"--import {name}: {error}; install the package, or leave out --import"
        ) from error
