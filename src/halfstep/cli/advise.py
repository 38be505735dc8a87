"""`halfstep advise`: recommends a recipe for a model before it is trained."""

import itertools
import math
import shlex
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from halfstep.cli.gpus import list_gpus
from halfstep.cli.overrides import OptionsFlag
from halfstep.cli.start_up import without_collections
from halfstep.errors import UserError
from halfstep.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console

    from halfstep.advise.answer import Answer
    from halfstep.advise.choose.clock import Tell
    from halfstep.advise.predict.forecast import Forecast
    from halfstep.advise.subject import Subject

BUDGET = 600.0
VERIFICATION = 1 / 3  # of the budget, at most
"""Default seconds for the whole command."""
LINES = 30.0
"""Seconds between lines of progress if stderr is not a terminal."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("advise", short_help="Recommend a recipe for a model, with reasons.")(advise)


def advise(  # noqa: PLR0913, PLR0915, PLR0917  (a flag each)
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
            help="Directory for advice.json, report.html and a config for each GPU (GPU.yaml) "
            "unless fp32 or tf32 is recommended for it, or recipe.yaml without --gpu. For your own "
            "model, these YAML files contain only the recipe.",
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
    from rich.console import Console

    from halfstep.advise import shapes
    from halfstep.advise.predict.gpus import GIB, parse_gpus
    from halfstep.compare.plan.arguments import parse_time_limit
    from halfstep.files import json_text
    from halfstep.recipe.parse import parse_recipes

    there = parse_gpus(gpu) if gpu is not None else ()
    library = shapes.is_library(subject)
    cost_only = cost_only or library
    _refuse(
        subject,
        options or (),
        costed=not there and (cost_only or batch_size or max_memory),
        tried=cost_only and (verify or out),
        shaped=not cost_only and (shape or classes),
    )
    images = shapes.images(subject, shape, classes)
    seconds = BUDGET if budget is None else parse_time_limit(budget, "--budget")
    named = parse_recipes(recipes) if recipes else ()
    with without_collections():
        from halfstep.advise import answer
        from halfstep.advise.budget import Budget
        from halfstep.advise.choose import advice, show
        from halfstep.advise.predict import forecast
        from halfstep.advise.report import files
        from halfstep.advise.subject import BATCHES, find

    clock = Budget(seconds)
    names = named or advice.CANDIDATES
    with _told(1 + len(names)) as tell:
        about = find(
            subject,
            options or (),
            batches=batches,
            loss=loss,
            optimizer=optimizer,
            learning_rate=lr,
            seed=seed,
            images=images,
        )
        if images is None and len(about.batches) < BATCHES:
            typer.echo(f"advise: {_few(len(about.batches), BATCHES)}", err=True)
        memory = max_memory and max_memory * GIB
        forecaster = forecast.Forecaster(
            about, batch=batch_size, memory=memory, tell=tell, check=clock.check
        )
        costs = forecast.forecasts(forecaster, names, there, partly=not cost_only) if there else []
    console = Console(quiet=as_json)
    given = {
        "--batches": batches,
        "--loss": loss,
        "--optimizer": optimizer,
        "--lr": lr,
        "--recipes": recipes,
        "--batch-size": batch_size,
        "--max-memory": max_memory,
    }
    if costs:  # printed now, because the next stages take much longer
        examine = "" if images else _command(subject, options or (), given)
        _print_costs(console, about, costs, names, examine if cost_only else None)
    before_search = clock.used()
    if cost_only:
        found = answer.Answer(about, None, tuple(costs))
    else:
        with _told(1 + len(names)) as tell:
            forecaster.tell = tell
            found = answer.answer(
                about,
                names,
                there,
                forecaster=forecaster,
                seed=seed,
                budget=clock.left(),
                tell=tell,
            )
    before, verifies = found, verify is not False and found.advice is not None
    available = min(clock.left(), seconds * VERIFICATION)
    enough = _enough(before_search + found.needed)
    _print(console, found, costs, enough, verifies=verifies, available=available)
    if verifies:
        found = _verified(found, seed, available)
    show.settings(console, found, before)
    if out is not None:
        _print_files(console, found, files.write(out, found), out)
    if as_json:
        typer.echo(json_text(found.as_json(), indent=1))
    if found.interrupted:
        raise KeyboardInterrupt


def _verified(found: "Answer", seed: int, available: float) -> "Answer":
    """Verify the recommended recipes in short training runs, in a number of seconds."""
    from halfstep.advise import answer
    from halfstep.advise.choose.verify import Verifier

    recipes = len(found.recommended)
    with _told() as tell:
        return answer.verify(found, Verifier(found.subject, seed, available, tell, recipes=recipes))


def _enough(seconds: float) -> str:
    enough = f"--budget {_minutes(seconds)} --no-verify"
    return f"to examine all: {enough}; to verify as well, a longer budget"


def _print_files(console: "Console", found: "Answer", written: list[str], out: Path) -> None:
    console.print(f"{', '.join(written[:-1])} and {written[-1]} are in {out}", soft_wrap=True)
    reasons = {
        True: "no safe recipe is predicted to be clearly faster there than fp32 or tf32",
        False: "no recipe fits into memory there",
    }
    for fits, reason in reasons.items():
        bare = [
            each.gpu.name
            for each in found.choices
            if each.best is None and each.reference.fits is fits
        ]
        if bare:
            console.print(f"no recipe file for {', '.join(bare)}: {reason}", soft_wrap=True)


def _refuse(
    subject: str, options: "Sequence[str]", *, costed: object, tried: object, shaped: object
) -> None:
    """Refuse, before torch is imported, a wrong config and flags that contradict each other."""
    from halfstep.advise import shapes
    from halfstep.train.config.files import load

    if ".py" not in subject:
        load(shapes.settings(subject) if shapes.is_library(subject) else subject, options)
    if costed:
        raise UserError(
            "--cost-only, timm:MODEL, --batch-size and --max-memory need --gpu; write, for "
            "example, --gpu h100"
        )
    if tried:
        raise UserError("--cost-only trains nothing; leave out --verify and --out")
    if shaped:
        raise UserError("--shape and --classes need --cost-only: without data, nothing is trained")


def _command(subject: str, options: "Sequence[str]", given: "Mapping[str, object]") -> str:
    """Return the command without --cost-only and --gpu, for the suggestion to examine recipes."""
    flags = {flag: str(value) for flag, value in given.items() if value is not None}
    words = [*itertools.chain(*flags.items()), *(["--options", *options] if options else [])]
    return shlex.join(["halfstep", "advise", subject, *words])


def _few(batches: int, wanted: int) -> str:
    return (
        f"only {counted(batches, 'batch', 'batches')} instead of {wanted}, so they are repeated; "
        "the variance between batches, and the results that depend on it, are less certain"
    )


def _minutes(seconds: float) -> str:
    """Return a budget that is large enough for `seconds`, such as "25m"."""
    return f"{math.ceil(1.2 * seconds / 60)}m"


def _print_costs(
    console: "Console",
    subject: "Subject",
    costs: "Sequence[Forecast]",
    names: "Sequence[str]",
    examine: str | None,
) -> None:
    """Print the predicted costs, and the fastest recipes if nothing else is examined."""
    from halfstep.advise import table
    from halfstep.advise.predict import native_fp8

    gpus = [*dict.fromkeys(each.gpu for each in costs)]
    lines = native_fp8.lines(subject, gpus, costs[0].batch)
    table.show(console, subject.name, costs, *([table.TRIED_NEXT] if examine is None else []))
    if examine is not None:
        lines += native_fp8.not_predicted(names, gpus)
        traced = {"fp32", "tf32", *(cost.recipe for cost in costs)}
        if late := ", ".join(name for name in names if name not in traced):
            typer.echo(f"advise: the budget was spent before {late} was traced", err=True)
        lines = [*lines, *table.fastest(costs, examine)]
    for line in lines:
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def _print(
    console: "Console",
    found: "Answer",
    shown: "Sequence[Forecast]",
    more: str,
    *,
    verifies: bool,
    available: float,
) -> None:
    """Print the answer, the costs that have changed since they were first printed, what follows."""
    from halfstep.advise import table
    from halfstep.advise.choose import show

    if found.advice:
        show.show(console, found)
    if changed := table.changed(found.costs, shown):
        table.show(console, found.subject.name, changed, table.CHANGED)
    show.conclude(console, found, more)
    names = ", ".join(trial.base for trial in found.recommended)
    if not names:
        return
    said = f"{names}: not verified in short training runs (--no-verify)"
    if verifies:
        said = (
            f"advise now verifies {names} in short training runs, in at most {available:.0f} s; "
            "Ctrl-C ends this, and keeps the recommendation"
        )
    console.print(said, soft_wrap=True, highlight=False)


@contextmanager
def _told(stages: int | None = None) -> "Iterator[Tell]":
    """Show progress: on a terminal as a bar over the stages, otherwise as lines on stderr.

    A line is printed when a stage begins, and after `LINES` seconds without a line.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    console = Console(stderr=True)
    disable = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=disable) as progress:
        task = progress.add_task("loading", total=stages)
        stage, begun, said_at = "", -1, -math.inf

        def tell(what: str, detail: str = "", /) -> None:
            nonlocal stage, begun, said_at
            begun += what != stage
            described = f"{what}: {detail}" if detail else what
            if not disable:
                known = stages is not None and begun <= stages
                total = stages if known else None
                progress.update(
                    task, description=described, completed=begun if known else 0, total=total
                )
            elif what != stage or time.monotonic() - said_at >= LINES:
                typer.echo(f"advise: {described}", err=True)
                said_at = time.monotonic()
            stage = what

        yield tell
