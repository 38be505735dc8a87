"""`halfstep advise`: recommends a recipe for a model before it is trained."""

from pathlib import Path
from typing import Annotated

import typer

from halfstep.cli.gpus import list_gpus
from halfstep.cli.overrides import OptionsFlag
from halfstep.cli.start_up import without_collections

BUDGET = 600.0
"""Default seconds for the whole command."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("advise", short_help="Recommend a recipe for a model, with reasons.")(advise)


def advise(  # noqa: PLR0913, PLR0917  (a flag each)
    subject: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG|FILE.py:FUNCTION|timm:MODEL",
            help="Name of a shipped config, a YAML file, or your function that returns a model. "
            "The function's file is executed. Of a model of timm or torchvision, such as "
            "timm:resnet50, only the cost is predicted.",
        ),
    ],
    recipes: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="Recipes to try; default: bf16, fp16, o2, bf16-sr and half-bn32.",
        ),
    ] = None,
    options: OptionsFlag = None,
    batches: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:FUNCTION",
            help="For your own model: a function that returns a list of batches, each "
            "(inputs, targets). The first 8 are used; --verify uses all, in random order.",
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:FUNCTION",
            help="For your own model: a function that returns the loss of a model and a batch; "
            "default: cross-entropy.",
        ),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="For your own model: the optimizer, by its name in a config, such as adamw; "
            "default: sgd, with a momentum of 0.9.",
        ),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(min=0, help="For your own model: the learning rate; default: 0.01."),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...|list",
            callback=list_gpus,
            is_eager=True,
            help="GPUs to choose the fastest recipe for, such as h100,rtx4090,t4. They need not "
            "be in this machine. --gpu list prints all names.",
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="With --gpu: the batch size for which time and memory are predicted; default: "
            "the size of the first batch. Safety is tested with the batches as they are.",
        ),
    ] = None,
    max_memory: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            metavar="GIB",
            help="With --gpu: memory that a step may use; default: all of the GPU's memory.",
        ),
    ] = None,
    cost_only: Annotated[
        bool,
        typer.Option(
            "--cost-only", help="With --gpu: only predict time and memory; train nothing."
        ),
    ] = False,
    shape: Annotated[
        str | None,
        typer.Option(
            metavar="CxHxW",
            help="With --cost-only: the shape of the model's images, such as 3x224x224; with "
            "--classes, no data set is read.",
        ),
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="With --cost-only and --shape: number of classes."),
    ] = None,
    verify: Annotated[
        bool | None,
        typer.Option(
            "--verify/--no-verify",
            help="Check the chosen recipe against fp32 in short training runs; if it is worse, "
            "check the next best. Default: --verify.",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="10m",
            help="Time for the whole command. Recipes that cannot be examined in it are listed as "
            "not examined. The verification takes at most a third of it. Default: 10m.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory for advice.json, report.html and a config for each GPU (GPU.yaml), or "
            "recipe.yaml without --gpu. For your own model, these YAML files contain only the "
            "recipe.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Random seed.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train eight steps in fp32, test each recipe on them, and recommend one.

    For each recipe, advise reports whether the model trains safely under it, which layers or
    operators must stay in fp32 (with the reason and the line of code), and the initial loss scale.
    It does not change your files. No GPU is needed: half formats are rehearsed, that is, emulated.

    With --gpu, it recommends, of the safe recipes that fit into the GPU's memory, the one with the
    shortest predicted step time, which includes the casts around layers that stay in fp32. Of
    recipes within 5 % of this time, it prefers those without a warning, and then those with fp32
    parameters. If no recipe is clearly faster than fp32 or tf32, it recommends fp32 or tf32.
    Time and memory are predicted from a trace of one step without data; nothing runs on the GPU.

        halfstep advise digits --gpu h100,t4 --budget 10m --out advice

        halfstep train advice/t4.yaml

        halfstep advise model.py:build --batches data.py:batches

        halfstep advise timm:resnet50 --batch-size 256 --gpu h200,b200
    """
    from halfstep.advise.request import Request
    from halfstep.compare.plan.arguments import parse_time_limit

    request = Request(
        subject=subject,
        options=options or (),
        recipes=recipes,
        batches=batches,
        loss=loss,
        optimizer=optimizer,
        lr=lr,
        gpu=gpu,
        batch_size=batch_size,
        max_memory=max_memory,
        cost_only=cost_only,
        shape=shape,
        classes=classes,
        verify=verify,
        budget=BUDGET if budget is None else parse_time_limit(budget, "--budget"),
        out=out,
        seed=seed,
    )
    request.refuse()
    with without_collections():
        from halfstep.advise import advising
        from halfstep.advise.terminal import Terminal
        from halfstep.files import json_text

    found = advising.advise(request, Terminal(quiet=as_json))
    if as_json:
        typer.echo(json_text(found.as_json(), indent=1))
    if found.interrupted:
        raise KeyboardInterrupt
