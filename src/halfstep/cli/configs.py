"""`halfstep configs`: the list of configs; `halfstep config`: one config, or the JSON schema."""

from typing import Annotated

import typer

from halfstep.cli.overrides import BatchSizeFlag, EpochsFlag, LrFlag, OptionsFlag, overrides


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("configs", short_help="List the shipped configs.")(configs)
    one = typer.Typer(help="Print a complete config, or the JSON schema.", no_args_is_help=True)
    one.command("show", short_help="Print a complete config with an explanation of each field.")(
        show
    )
    one.command("schema", short_help="Print the JSON schema of configs, for editors.")(schema)
    app.add_typer(one, name="config")


def configs(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the shipped configs, which halfstep train and halfstep compare take by name."""
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
        str, typer.Argument(metavar="CONFIG", help="Name of a shipped config, or a YAML file.")
    ],
    epochs: EpochsFlag = None,
    lr: LrFlag = None,
    batch_size: BatchSizeFlag = None,
    options: OptionsFlag = None,
) -> None:
    """Print CONFIG with inherited values, these options and defaults filled in.

    The comment above each field explains it. The output is a valid config.
    """
    from halfstep.train.config.explain import explained
    from halfstep.train.config.files import load

    changes = overrides(options, epochs=epochs, lr=lr, batch_size=batch_size)
    typer.echo(explained(load(config, changes)), nl=False)


def schema() -> None:
    """Print the JSON schema of config files.

    Editors use it to complete and check YAML. Save it to a file, and start each config with the
    line "# yaml-language-server: $schema=FILE".
    """
    from halfstep.files import json_text
    from halfstep.train.config.explain import schema as config_schema

    typer.echo(json_text(config_schema(), indent=2))
