"""`halfstep migrate SCRIPT`: rewrites the source of an Apex program."""

import ast
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from halfstep.errors import UserError


class _Target(StrEnum):
    halfstep = "halfstep"
    torch = "torch"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("migrate", short_help="Rewrite a program that uses apex.amp.")(migrate)


def migrate(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A Python file.")],
    to: Annotated[
        _Target, typer.Option(help="Use halfstep.Engine, or torch.autocast and GradScaler.")
    ] = _Target.halfstep,
    *,
    write: Annotated[
        bool,
        typer.Option("--write/--diff", help="Change the file, or only print a diff."),
    ] = False,
) -> None:
    """Rewrite SCRIPT, which uses apex.amp, for halfstep.Engine or torch.amp.

    Code without a counterpart stays as it is, with a comment at the line. These lines are listed on
    stderr.
    """
    from halfstep.files import write_atomically
    from halfstep.migrate import migrate as rewrite

    try:
        source = script.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{script}: not UTF-8 ({error.reason} at byte {error.start})") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"{str(script)!r} cannot be read: {reason}; write the path of a Python program"
        ) from error
    done = rewrite(source, to.value, name=str(script))
    if write and done.after != source:
        mode = script.stat().st_mode
        write_atomically(script, done.after.encode())
        script.chmod(mode)
    elif not write:
        typer.echo(done.diff(script.name), nl=False)
    for note in done.notes:
        typer.echo(f"{script}:{note.line}: {note.reason}", err=True)
    if done.after == source:
        typer.echo(f"{script}: does not use apex.amp; nothing to rewrite", err=True)
    elif write and ast.dump(ast.parse(done.after)) == ast.dump(ast.parse(source)):
        typer.echo(f"{script}: not rewritten; the comments added say why", err=True)
    elif write:
        typer.echo(f"rewrote {script}; notes to read: {len(done.notes)}", err=True)
