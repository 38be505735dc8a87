"""`halfstep doctor [--report DIR] script.py ...`: says why a training program, or a run, broke."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "doctor",
        short_help="Run a training program under watch, and say why it broke.",
        context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True},
    )(doctor)


def doctor(
    program: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT|-m MODULE|RUN [ARGUMENTS]",
            help="The program, as after `python`; or the directory of a run of halfstep train.",
        ),
    ] = None,
    *,
    report: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Leave diagnosis.json in this directory.")
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
        from halfstep.train.reexamine import explain

        explain(Path(program[0]), sys.stdout, report=report)
        return
    from halfstep.doctor.program import run_program

    if code := run_program(program or [], report):
        raise typer.Exit(code)
