"""`halfstep advise`: which recipes a model survives, before it is trained under them."""

from typing import Annotated

import typer

from halfstep.cli.start_up import without_collections
from halfstep.cli.train import OptionsFlag


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("advise", short_help="Say which recipes a model survives, and with what.")(advise)


def advise(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG|FILE.py:FUNCTION",
            help="A shipped config's name, a YAML file, or a function of yours that returns a "
            "model. Its file is run.",
        ),
    ],
    recipes: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="What is tried; bf16, fp16, o2, bf16-sr and half-bn32 by default.",
        ),
    ] = None,
    options: OptionsFlag = None,
    batches: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:FUNCTION",
            help="For a model of yours: a function that returns batches of (inputs, targets).",
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:FUNCTION",
            help="For a model of yours: the loss of a model and a batch; cross-entropy by default.",
        ),
    ] = None,
    lr: Annotated[
        float, typer.Option(min=0, help="For a model of yours: the learning rate of SGD.")
    ] = 0.01,
    seed: Annotated[int, typer.Option(help="Of whatever is random.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Train eight steps in fp32, and try recipes on them: what would overflow, underflow or stall.

    For each recipe it says whether the model survives it, which layers or operators have to stay in
    fp32 for that, with the reason and the line of code, and the loss scale to start with. Nothing
    of yours is changed, and no GPU is needed: half formats are rehearsed.
    """
    from rich.console import Console

    from halfstep.compare.arguments import parse_recipes
    from halfstep.files import json_text

    with without_collections():
        from halfstep.advise.choose import advice, show
        from halfstep.advise.subject import find

    console = Console(stderr=True)
    names = parse_recipes(recipes) if recipes else list(advice.CANDIDATES)
    with console.status("loading") as status:
        about = find(subject, options or (), batches=batches, loss=loss, learning_rate=lr)
        found = advice.advise(
            about, names, seed=seed, tell=lambda what: status.update(f"{about.name}: {what}")
        )
    if as_json:
        typer.echo(json_text(found.as_json(), indent=1))
    else:
        show.show(Console(), found)
