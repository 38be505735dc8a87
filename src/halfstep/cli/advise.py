"""`halfstep advise`: which recipes a model survives, before it is trained under them."""

from typing import Annotated, Any

import typer

from halfstep.cli.start_up import without_collections
from halfstep.cli.train import OptionsFlag
from halfstep.errors import UserError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("advise", short_help="Say which recipes a model survives, and with what.")(advise)


def advise(  # noqa: PLR0913, PLR0917  (a flag each)
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
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="Predict besides what recipes cost on GPUs that are not here: h100,rtx4090,t4.",
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="With --gpu: samples of a step; the first batch's by default."
        ),
    ] = None,
    cost_only: Annotated[
        bool, typer.Option("--cost-only", help="With --gpu: predict cost, and try nothing.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of whatever is random.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Train eight steps in fp32, and try recipes on them: what would overflow, underflow or stall.

    For each recipe it says whether the model survives it, which layers or operators have to stay in
    fp32 for that, with the reason and the line of code, and the loss scale to start with. Nothing
    of yours is changed, and no GPU is needed: half formats are rehearsed. With --gpu it predicts
    what a step takes there under each recipe, from a trace on tensors without memory.
    """
    from rich.console import Console

    from halfstep.compare.arguments import parse_recipes
    from halfstep.files import json_text

    with without_collections():
        from halfstep.advise.choose import advice, show
        from halfstep.advise.forecast import SHARE, forecast
        from halfstep.advise.gpus import gpu as find_gpu
        from halfstep.advise.subject import find
        from halfstep.advise.table import show as show_costs

    if gpu is None and (cost_only or batch_size):
        raise UserError("--cost-only and --batch-size are for --gpu; write --gpu h100 besides")
    there = [find_gpu(name) for name in (gpu or "").split(",") if name.strip()]
    console = Console(stderr=True)
    names = parse_recipes(recipes) if recipes else list(advice.CANDIDATES)
    with console.status("loading") as status:
        about = find(subject, options or (), batches=batches, loss=loss, learning_rate=lr)

        def tell(what: str) -> None:
            status.update(f"{about.name}: {what}")

        found = None if cost_only else advice.advise(about, names, seed=seed, tell=tell)
        costs = forecast(about, names, there, batch=batch_size, tell=tell) if there else []
    if as_json:
        said: dict[str, Any] = found.as_json() if found else {"subject": about.name}
        if costs:
            rows = [each.as_json() for each in costs]
            said["predicted"] = {"interval_percent": SHARE, "rows": rows}
        typer.echo(json_text(said, indent=1))
        return
    if found:
        show.show(Console(), found)
    if costs:
        show_costs(Console(), about.name, costs)
