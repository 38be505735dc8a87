"""`halfstep configs`, and one of them in full: `halfstep config show`, `halfstep config schema`."""

from typing import Annotated

import typer

from halfstep.cli.train import OptionsFlag


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("configs", short_help="List the configs that ship.")(configs)
    one = typer.Typer(help="Print a config in full, or the schema of all.", no_args_is_help=True)
    one.command("show", short_help="Print a config in full, each field explained.")(show)
    one.command("schema", short_help="Print the JSON schema of configs, for editors.")(schema)
    app.add_typer(one, name="config")


def configs(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """List the configs that ship: what halfstep train and halfstep compare take by name."""
    from halfstep.files import json_text
    from halfstep.train.config.files import load, shipped

    rows = [
        {"name": name, "description": load(name).description, "file": str(file)}
        for name, file in shipped().items()
    ]
    if as_json:
        typer.echo(json_text(rows, indent=2))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        typer.echo(f"{row['name']:{width}}  {row['description']}")


def show(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="A shipped config's name, or a YAML file.")
    ],
    options: OptionsFlag = None,
) -> None:
    """Print CONFIG with its bases, --options and defaults filled in: a config that halfstep takes.

    The comment above each field says what it does.
    """
    from halfstep.train.config.explain import explained
    from halfstep.train.config.files import load

    typer.echo(explained(load(config, options or [])), nl=False)


def schema() -> None:
    """Print the JSON schema of a config file.

    Editors complete and check YAML by it: write it to a file, and on the first line of a config
    "# yaml-language-server: $schema=FILE".
    """
    from halfstep.files import json_text
    from halfstep.train.config.explain import schema as config_schema

    typer.echo(json_text(config_schema(), indent=2))
