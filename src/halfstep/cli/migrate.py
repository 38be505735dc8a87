"""`halfstep migrate PATH...`: rewrites the source of an Apex program."""

import ast
import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from halfstep.errors import UserError

if TYPE_CHECKING:
    from halfstep.migrate import Migration


class _Target(StrEnum):
    halfstep = "halfstep"
    torch = "torch"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("migrate", short_help="Rewrite a program that uses apex.amp.")(migrate)


def migrate(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Python files of one project, or its folder."),
    ],
    to: Annotated[
        _Target, typer.Option(help="Use halfstep.Engine, or torch.autocast and GradScaler.")
    ] = _Target.halfstep,
    *,
    write: Annotated[
        bool,
        typer.Option("--write/--diff", help="Change the files, or only print a diff."),
    ] = False,
    cuda_amp: Annotated[
        bool,
        typer.Option(
            "--cuda-amp",
            help="Instead, replace names of torch.cuda.amp, deprecated since torch 2.4, by those "
            "of torch.amp.",
        ),
    ] = False,
) -> None:
    """Rewrite programs that use apex.amp, for halfstep.Engine or torch.amp.

    All files of a program are rewritten together, or none. Code without a counterpart stays as it
    is, with a comment at the line. These lines are listed on stderr.
    """
    from halfstep.migrate.folder import read

    given = read(map(_normal, paths))
    done = _with_torch_names(given, paths) if cuda_amp else _without_apex(given, paths, to)
    changed = [file for file in done if file.after != file.before]
    new = [file for file in changed if file.before is None]
    for file in new:
        if Path(file.name).exists():
            raise UserError(
                f"{file.name} exists, but the rewritten files need a new file of this name; move "
                "it, and migrate again"
            )
    if write:
        for file in [*new, *(file for file in changed if file not in new)]:
            _write(file)
    else:
        for file in changed:
            typer.echo(file.diff(_shown(file.name, given)), nl=False)
    _report(done, changed, write=write)
    if not changed:
        uses = "torch.cuda.amp" if cuda_amp else "apex.amp"
        names = ", ".join(map(str, paths))
        typer.echo(f"{names}: does not use {uses}; nothing to rewrite", err=True)


def _report(done: "list[Migration]", changed: "list[Migration]", *, write: bool) -> None:
    """Print the notes and, for written files, what was done."""
    for file in done:
        for note in file.notes:
            typer.echo(f"{file.name}:{note.line}: {note.reason}", err=True)
    for file in changed if write else ():
        if file.before is not None and _same_code(file.before, file.after):
            typer.echo(f"{file.name}: not rewritten; the comments added say why", err=True)
        else:
            verb = "wrote" if file.before is None else "rewrote"
            typer.echo(f"{verb} {file.name}; notes to read: {len(file.notes)}", err=True)


def _without_apex(given: dict[Path, str], paths: list[Path], to: _Target) -> "list[Migration]":
    from halfstep.migrate import Project, migrate_project
    from halfstep.migrate.folder import beside

    near = {} if any(path.is_dir() for path in paths) else beside(given)
    texts, others = ({str(path): text for path, text in files.items()} for files in (given, near))
    project = Project({**others, **texts})
    for name, error in project.broken.items():
        if name in texts:
            _ignore(error, named=_is_named(name, paths) or project.uses_amp(name))
    return migrate_project(project, to.value, texts)


def _with_torch_names(given: dict[Path, str], paths: list[Path]) -> "list[Migration]":
    from halfstep.migrate import modernized

    done = []
    for path, text in given.items():
        try:
            done.append(modernized(text, str(path)))
        except UserError as error:
            _ignore(error, named=_is_named(str(path), paths) or "amp" in text)
    return done


def _ignore(error: UserError, *, named: bool) -> None:
    """Print that a file which is not valid Python is ignored; raise the error for a named file."""
    if named:
        raise error
    typer.echo(f"{error}; the file does not use amp, and is ignored", err=True)


def _is_named(name: str, paths: list[Path]) -> bool:
    return Path(name) in map(_normal, paths)


def _normal(path: Path) -> Path:
    return Path(os.path.normpath(path))


def _write(migration: "Migration") -> None:
    from halfstep.files import write_atomically

    path = Path(migration.name)
    mode = path.stat().st_mode if migration.before is not None else None
    write_atomically(path, migration.after.encode())
    if mode is not None:
        path.chmod(mode)


def _shown(name: str, given: dict[Path, str]) -> str:
    """Return the path of a file relative to the folder of all files."""
    folder = os.path.commonpath([path.absolute().parent for path in given])
    return os.path.relpath(name, folder)


def _same_code(before: str, after: str) -> bool:
    return ast.dump(ast.parse(before)) == ast.dump(ast.parse(after))
