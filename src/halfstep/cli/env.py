"""`halfstep env`: the facts about the machine for a bug report."""

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("env", short_help="Print versions and devices, for a bug report.")(env)


def env(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print versions, devices, threads and distributed backends."""
    from halfstep.files import json_text
    from halfstep.train.environment import report

    environment = report()
    if as_json:
        typer.echo(json_text(environment, indent=2))
        return
    width = max(map(len, environment))
    for name, value in environment.items():
        text = ", ".join(value) if isinstance(value, list) else str(value)
        typer.echo(f"{name:<{width}}  {text or 'none'}".replace("\n", f"\n{' ' * width}  "))
