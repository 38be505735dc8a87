"""`halfstep data`: folds of an annotated CSV file, and faults of a data set."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from halfstep.cli.overrides import OptionsFlag
from halfstep.cli.train import ColumnsFlag
from halfstep.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from halfstep.train.data.audit.check import Fault
    from halfstep.train.data.audit.listing import Entry


def register(app: typer.Typer) -> None:
    """Add the commands."""
    data = typer.Typer(
        help="Split a data set into folds, or check it for faults.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    data.callback(invoke_without_command=True)(_help)
    data.command("folds", short_help="Split a CSV file into k stratified folds.")(folds)
    data.command("check", short_help="Find missing, unreadable, duplicate and blank images.")(check)
    app.add_typer(data, name="data", short_help="Split a data set into folds; check it for faults.")


def _help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def folds(
    file: Annotated[
        Path, typer.Argument(metavar="CSV", help="File with the columns image and label.")
    ],
    k: Annotated[int, typer.Option("--k", min=2, help="Number of folds.")] = 5,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the split.")] = 0,
    root: Annotated[
        Path | None, typer.Option(help="Base folder of the paths; default: the CSV file's folder.")
    ] = None,
    columns: ColumnsFlag = None,
    out: Annotated[
        Path,
        typer.Option(help="Output folder; default: the working directory.", show_default=False),
    ] = Path(),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")] = False,
) -> None:
    """Write train_fold0.csv, valid_fold0.csv and so on, stratified by class.

    Identical images are never in both train and valid of the same fold.
    """
    from halfstep.train.data.audit import folds as making
    from halfstep.train.data.sources import csv_rows
    from halfstep.train.data.sources.faults import warn_of

    named = csv_rows.columns_of(columns) if columns else csv_rows.STANDARD
    made = making.split(file, root or file.parent, k=k, seed=seed, columns=named)
    warn_of(notice.text for notice in made.notices)
    files = making.write(made.folds, out, overwrite=overwrite)
    for fold, train, valid in zip(made.folds, files[::2], files[1::2], strict=True):
        typer.echo(f"{train}: {counted(len(fold.train), 'image')}, {valid}: {len(fold.valid)}")
    if made.identical:
        typer.echo(
            f"groups of identical images, kept together: {made.identical}, "
            f"with different labels: {made.conflicting}; "
            f"see halfstep data check --csv {file}"
        )


def check(
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="CONFIG",
            help="Name of a shipped config, or a YAML file. Give either CONFIG or --csv.",
        ),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Check a CSV file instead of a config.")
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(
            help="With --csv: base folder of the paths in the CSV file; default: the file's folder."
        ),
    ] = None,
    columns: ColumnsFlag = None,
    options: OptionsFlag = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Read every image of a data set once, and list the faults.

    Faults are everything that halfstep train refuses or warns of, and images that are missing,
    unreadable or blank. Identical images are faults of three kinds: with different labels, in both
    splits, or twice in one split. Hidden files are listed, but are no faults.

    Exit code 2: there are faults.
    """
    from rich.console import Console

    from halfstep.errors import UserError

    of_set, entries = _listed(config, csv, root, columns, options or [])
    faults = [*of_set, *_faults(entries, Console(stderr=True))]
    if as_json:
        _print_json(len(entries), faults)
    else:
        _print_table(len(entries), faults)
    if count := _count(faults):
        raise UserError(f"the data set has faults: {count}, listed on standard output")


def _count(faults: "Sequence[Fault]") -> int:
    return sum(not fault.is_harmless for fault in faults)


def _listed(
    config: str | None,
    csv: Path | None,
    root: Path | None,
    columns: str | None,
    options: "Sequence[str]",
) -> "tuple[list[Fault], list[Entry]]":
    """Return the faults of the whole set, and its known images."""
    from halfstep.errors import UserError
    from halfstep.train.config import files as config_files
    from halfstep.train.data.sources import csv_rows

    if (config is None) == (csv is None):
        given = "neither is given" if csv is None else "both are given"
        raise UserError(f"CONFIG or --csv FILE: {given}; write one of them")
    if csv is not None:
        if options:
            raise UserError("--options changes a CONFIG, not --csv FILE; leave one of them out")
        named = csv_rows.columns_of(columns) if columns else csv_rows.STANDARD
        base = root or csv.parent
        from halfstep.train.data.audit import check as checking
        from halfstep.train.data.audit import listing

        of_set = checking.whole_list(csv, base, named)
        return of_set, _images(lambda: listing.of_csv(csv, base, columns=named), of_set)
    for flag, value in (("root", root), ("columns", columns)):
        if value is not None:
            raise UserError(f"--{flag} goes with --csv FILE; write --options data.{flag}=...")
    assert config is not None
    chosen = config_files.load(config, options)  # before torch is imported
    from halfstep.train.data.audit import check as checking
    from halfstep.train.data.audit import listing

    of_set = checking.whole_set(chosen)
    return of_set, _images(lambda: listing.of_config(chosen.data), of_set)


def _images(listing: "Callable[[], list[Entry]]", of_set: "Sequence[Fault]") -> "list[Entry]":
    from halfstep.errors import UserError

    try:
        return listing()
    except UserError:
        if any(fault.kind == "refused" for fault in of_set):  # it has the same reason
            return []
        raise


def _faults(entries: "Sequence[Entry]", console: "Console") -> "list[Fault]":
    import os

    from rich.progress import track

    from halfstep.train.data.audit import check as checking

    looks = checking.look(entries, threads=os.cpu_count() or 1)
    return checking.faults(
        track(
            looks,
            "reading",
            total=len(entries),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
    )


def _print_json(images: int, reported: "Sequence[Fault]") -> None:
    from halfstep.files import json_text

    columns = ("image", "label", "split", "file", "row")
    faults = [
        {
            "kind": fault.kind,
            "places": [{name: getattr(place, name) for name in columns} for place in fault.places],
            "detail": fault.detail,
        }
        for fault in reported
    ]
    typer.echo(json_text({"images": images, "faults": faults}, indent=2))


def _print_table(images: int, faults: "Sequence[Fault]") -> None:
    import sys

    from rich import box
    from rich.console import Console
    from rich.table import Table

    from halfstep.train.data.audit.check import MEANINGS

    table = Table("fault", "where", "image", "label", "split", "detail", box=box.SIMPLE_HEAD)
    for column in table.columns[:-1]:
        column.overflow = "fold"  # a name that is cut cannot be looked up
    for fault in faults:
        kind, detail = str(fault.kind), fault.detail
        if not fault.places:
            table.add_row(kind, "", "", "", "", detail)
        for place in fault.places:
            where = f"{Path(place.file).name} row {place.row}" if place.file else ""
            table.add_row(kind, where, place.image, place.label, place.split, detail)
            kind = detail = ""
    if faults:
        # Output to a pipe is not wrapped.
        Console(width=None if sys.stdout.isatty() else 10_000).print(table, markup=False)
    for kind, meaning in MEANINGS.items():
        count = sum(fault.kind == kind for fault in faults)
        if count:
            typer.echo(f"{count:>6} {kind}: {meaning}")
    groups = sum(len(fault.places) > 1 for fault in faults)
    typer.echo(f"images: {images}, faults: {_count(faults)}, groups of identical images: {groups}")
