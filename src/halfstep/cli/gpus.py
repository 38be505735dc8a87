"""`--gpu list`: prints the names of GPUs, for each command that has the flag `--gpu`."""

import typer

from halfstep.cli.start_up import without_collections


def list_gpus(value: str | None) -> str | None:
    """Print every GPU that `--gpu` accepts and end the command, if the value is "list"."""
    if value is None or value.strip().lower() != "list":
        return value
    with without_collections():
        from halfstep.advise.predict.gpus import gpus
    for gpu in gpus().values():
        others = f"; also {', '.join(gpu.aliases)}" if gpu.aliases else ""
        typer.echo(f"{gpu.key:<14}{gpu.name}, {gpu.memory:g} GiB{others}")
    raise typer.Exit
