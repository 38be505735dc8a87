"""`halfstep bench`: measures which part makes training slow on this machine, for one config.

`halfstep bench recipes` needs no config: it compares recipes on a model that it is given by name.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from halfstep.cli.gpus import list_gpus
from halfstep.cli.overrides import BatchSizeFlag, OptionsFlag, overrides
from halfstep.cli.start_up import without_collections
from halfstep.cli.train import DeviceFlag

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from halfstep.bench.outcome import Outcome
    from halfstep.train.config import Config

ConfigArgument = Annotated[
    str, typer.Argument(metavar="CONFIG", help="Name of a shipped config, or a YAML file.")
]
RoundsFlag = Annotated[
    int, typer.Option(min=1, help="Number of rounds; each one measures every setting once.")
]
OutFlag = Annotated[
    Path | None,
    typer.Option(
        help="Directory for the results; default: runs/bench/CONFIG-NAME, where NAME is loader, "
        "threads, launch, step or recipes."
    ),
]
QuietFlag = Annotated[bool, typer.Option("--quiet", help="Hide progress messages.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    bench = typer.Typer(
        help="Measure what makes the training of a config fast or slow on this machine.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    bench.callback(invoke_without_command=True)(_help)
    bench.command("loader", short_help="Images per second of data loading, by data.workers.")(
        loader
    )
    bench.command("threads", short_help="Training time, by OMP_NUM_THREADS.")(threads)
    bench.command("launch", short_help="Time to the first step: spawn and torchrun.")(launch)
    bench.command("step", short_help="Time of each part of a training step.")(step)
    bench.command("recipes", short_help="Time and memory of a named model, by recipe.")(recipes)
    bench.command("operators", short_help="Times of operators, for predictions of advise.")(
        operators
    )
    app.add_typer(bench, name="bench", short_help="Measure what makes training fast or slow here.")


def _help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def loader(
    config: ConfigArgument,
    workers: Annotated[
        str, typer.Option(metavar="N,...", help="Values of data.workers.")
    ] = "0,1,2,4",
    steps: Annotated[int, typer.Option(min=1, help="Batches timed in each round.")] = 100,
    rounds: RoundsFlag = 3,
    batch_size: BatchSizeFlag = None,
    options: OptionsFlag = None,
    device: DeviceFlag = None,
    out: OutFlag = None,
    quiet: QuietFlag = False,
) -> None:
    """Measure how fast images are loaded, decoded, transformed and prepared, without a model."""
    changes = overrides(options, batch_size=batch_size)

    def measure(chosen: "Config", console: "Console") -> "Outcome":
        with without_collections():
            from halfstep.bench import loader as measuring

        return measuring.bench(
            chosen,
            options=changes,
            workers=workers,
            steps=steps,
            rounds=rounds,
            console=console,
        )

    _run("loader", config, changes, device, out, quiet, measure)


def threads(
    config: ConfigArgument,
    threads: Annotated[
        str, typer.Option(metavar="N,...", help="Values of OMP_NUM_THREADS and MKL_NUM_THREADS.")
    ] = "1,2,4",
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Number of optimizer steps to time; default: one epoch."),
    ] = None,
    rounds: RoundsFlag = 3,
    batch_size: BatchSizeFlag = None,
    options: OptionsFlag = None,
    device: DeviceFlag = None,
    out: OutFlag = None,
    quiet: QuietFlag = False,
) -> None:
    """Measure the training time for each number of threads, each in a new process."""
    changes = overrides(options, batch_size=batch_size)

    def measure(chosen: "Config", console: "Console") -> "Outcome":
        with without_collections():
            from halfstep.bench import threads as measuring

        return measuring.bench(
            chosen,
            options=changes,
            threads=threads,
            steps=steps,
            rounds=rounds,
            console=console,
        )

    _run("threads", config, changes, device, out, quiet, measure)


def launch(
    config: ConfigArgument,
    processes: Annotated[int, typer.Option(min=1, metavar="N", help="Number of processes.")] = 2,
    rounds: RoundsFlag = 3,
    batch_size: BatchSizeFlag = None,
    options: OptionsFlag = None,
    device: DeviceFlag = None,
    out: OutFlag = None,
    quiet: QuietFlag = False,
) -> None:
    """Measure the time to the first step with torch.multiprocessing.spawn and with torchrun."""
    changes = overrides(options, batch_size=batch_size)

    def measure(chosen: "Config", console: "Console") -> "Outcome":
        with without_collections():
            from halfstep.bench import launch as measuring

        return measuring.bench(
            chosen, options=changes, processes=processes, rounds=rounds, console=console
        )

    _run("launch", config, changes, device, out, quiet, measure)


def step(
    config: ConfigArgument,
    recipes: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Recipes; default: the config's own.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps timed in each round.")] = 50,
    warmup: Annotated[int, typer.Option(min=0, help="Untimed steps before the timed ones.")] = 10,
    rounds: RoundsFlag = 3,
    batch_size: BatchSizeFlag = None,
    options: OptionsFlag = None,
    device: DeviceFlag = None,
    out: OutFlag = None,
    quiet: QuietFlag = False,
) -> None:
    """Time the parts of a training step: data, forward, backward, unscaling, optimizer, rest."""
    changes = overrides(options, batch_size=batch_size)

    def measure(chosen: "Config", console: "Console") -> "Outcome":
        del chosen  # each recipe loads the config again
        with without_collections():
            from halfstep.bench import step as measuring

        return measuring.bench(
            config,
            options=changes,
            device_name=device,
            recipes=recipes,
            steps=steps,
            warmup=warmup,
            rounds=rounds,
            console=console,
        )

    _run("step", config, changes, device, out, quiet, measure)


def recipes(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A classifier of timm or torchvision, such as resnet50 or torchvision:vit_b_16.",
        ),
    ],
    batch: Annotated[int, typer.Option(min=1, help="Images of a step.")] = 256,
    size: Annotated[int, typer.Option(min=1, help="Height and width of an image.")] = 224,
    recipes: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="Recipes; speed-ups are over the first. Default: tf32, bf16, fp16, half-bn32, "
            "bf16-sr, fp16+act4 and fp16+act2.",
        ),
    ] = None,
    gpu: Annotated[
        str,
        typer.Option(metavar="NAME", help="On a CPU: the GPU for which steps are predicted."),
    ] = "h100",
    device: DeviceFlag = None,
    out: OutFlag = None,
    quiet: QuietFlag = False,
) -> None:
    """Time and memory of a training step by recipe, on synthetic images; predicted on a CPU."""
    with without_collections():
        from rich.console import Console

        from halfstep.bench import recipes as measuring

    _written(
        "recipes",
        model.rpartition(":")[2],
        out,
        lambda: measuring.bench(
            model,
            batch=batch,
            size=size,
            recipes=recipes,
            device_name=device or "auto",
            gpu=gpu,
            console=Console(stderr=True, quiet=quiet),
        ),
    )


def operators(
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE.toml",
            callback=list_gpus,
            help="The datasheet of this GPU; default: by its name. --gpu list prints all names.",
        ),
    ] = None,
    device: DeviceFlag = None,
    seconds: Annotated[
        float,
        typer.Option(
            min=1, help="Time limit; a later run continues with what the file does not have yet."
        ),
    ] = 80.0,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="File for the results; default: the file of this GPU that advise reads.",
        ),
    ] = None,
    toy: Annotated[
        bool, typer.Option("--toy", help="Small tensors and few operators, for a test.")
    ] = False,
) -> None:
    """Measure the commonest operators of 40 image models and two transformers on this GPU.

    advise then predicts steps on this GPU, and on GPUs of its architecture, from these times.
    """
    from halfstep.advise.predict.gpus import parse_gpus
    from halfstep.errors import UserError

    sheets = parse_gpus(gpu) if gpu is not None else ()
    if len(sheets) > 1:
        raise UserError(f"--gpu is {gpu!r}; name one GPU: the one that is measured")
    with without_collections():
        from halfstep.bench.operators import here, measuring
        from halfstep.train.environment import pick_device

    place = pick_device(device or "auto")
    sheet = sheets[0] if sheets else here.gpu_of(place)
    path = out or here.own_file(sheet)
    shrink, listed = (16, measuring.commonest()[:40:4]) if toy else (1, None)
    done, wanted = measuring.measure(
        path,
        sheet,
        place,
        limit=seconds,
        listed=listed,
        shrink=shrink,
        tell=lambda line: typer.echo(f"bench: {line}", err=True),
    )
    rest = "" if done == wanted else "; run the command again to continue"
    typer.echo(f"{done} of {wanted} calls are in {path}{rest}")


def _run(
    bench: str,
    config: str,
    options: list[str],
    device: str | None,
    out: Path | None,
    quiet: bool,
    measure: "Callable[[Config, Console], Outcome]",
) -> None:
    """Check the arguments, measure, then write the files and print the table."""
    from halfstep.train.config import files

    chosen = files.load(config, options, {"device": device})  # before torch is imported
    with without_collections():
        from rich.console import Console

    console = Console(stderr=True, quiet=quiet)
    _written(bench, chosen.name, out, lambda: measure(chosen, console))


def _written(bench: str, name: str, out: Path | None, measure: "Callable[[], Outcome]") -> None:
    """Measure, then write the files and print the table."""
    with without_collections():
        from rich.console import Console

        from halfstep.bench import directory, table

    place = directory.place(out, bench, name)
    try:
        outcome = measure()
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; nothing was written") from None
    directory.write(place, outcome)
    table.show(Console(), outcome, place)
