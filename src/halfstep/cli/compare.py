"""`halfstep compare`: trains one config under several recipes and prints the table."""

from pathlib import Path
from typing import Annotated

import typer

from halfstep.cli.gpus import list_gpus
from halfstep.cli.overrides import BatchSizeFlag, EpochsFlag, LrFlag, OptionsFlag, overrides
from halfstep.cli.start_up import without_collections
from halfstep.cli.train import DeviceFlag


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compare", short_help="Train one config under several recipes; print the table.")(
        compare
    )


def compare(  # noqa: PLR0913, PLR0917  # its parameters are the flags of the command
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="Name of a shipped config, or a YAML file.")
    ],
    recipes: Annotated[
        str,
        typer.Option(
            metavar="NAME,...",
            help="The recipes, one row of the table each. The first is the reference. A recipe "
            "defined in the config is given by its name.",
        ),
    ] = "fp32,fp16,bf16",
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="COUNT|N,...",
            help="Number of seeds (3 means seeds 0, 1 and 2), or a list of seeds (0,7,9). "
            "Default: 5.",
        ),
    ] = None,
    margin: Annotated[
        float,
        typer.Option(
            metavar="POINTS",
            help="Loss of accuracy that is tolerated: each recipe is no worse by more than this, "
            "worse, or not settled.",
        ),
    ] = 1.0,
    looks: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="Judge after so many seeds (4,8,16), and stop when every row is settled. The "
            "intervals allow for the looks.",
        ),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,... ...",
            help="Values to combine with each recipe, one row per combination: --grid "
            "batch_size=256,1024 optimizer.lr=0.1,0.4",
        ),
    ] = None,
    epochs: EpochsFlag = None,
    lr: LrFlag = None,
    batch_size: BatchSizeFlag = None,
    options: OptionsFlag = None,
    device: DeviceFlag = None,
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="N,...|cpu,...",
            help="Devices to use in parallel, one run on each: --devices 0,1,2,3 for GPUs, "
            "--devices cpu,cpu for two runs at a time on the CPU. With --processes 2, each run "
            "uses two of the GPUs. Default: one GPU; on a CPU, as many runs at a time as its cores "
            "hold, if the config sets threads.",
        ),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Train each run in N processes, with one GPU each if available. Each process "
            "takes batch_size images per batch.",
        ),
    ] = 1,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="ray[:ADDRESS]|slurm[:KEY=VALUE,...]",
            help="Run on a cluster: through Ray, or as Slurm jobs with the given sbatch settings.",
        ),
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option(metavar="30m", help="Stop a run after this time; the table marks it."),
    ] = None,
    export: Annotated[
        str | None,
        typer.Option(
            metavar="parquet,png", help="Also write these formats; they need extra packages."
        ),
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Suffix of the comparison's directory.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The comparison's directory; default: runs/compare/CONFIG[-TAG]."),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...|none|list",
            callback=list_gpus,
            is_eager=True,
            help="Also predict time and memory of a step on these GPUs. They need not be in this "
            "machine. Default: h100 if the runs use a CPU, otherwise none. --gpu list prints all "
            "names.",
        ),
    ] = None,
    *,
    aa: Annotated[
        bool, typer.Option("--aa", help="Also train the first recipe with other seeds.")
    ] = False,
    control: Annotated[
        bool,
        typer.Option("--control", help="Also train a recipe that loses accuracy by design."),
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Repeat runs that already have a result.")
    ] = False,
) -> None:
    """Train CONFIG once per recipe, seed and grid point, and compare the results.

    On a CPU, half formats are rehearsed, that is, emulated: the accuracies are valid, the
    times are not. A second table therefore predicts time and memory of a step on a GPU; nothing
    runs on that GPU. Choose other GPUs with --gpu t4,rtx4090, or none with --gpu none.

    After an interruption, run the same command again: finished runs are not repeated.

    Exit code 1: a run crashed.
    """
    from halfstep.compare.cells import warm
    from halfstep.train.config.files import load

    changes = overrides(options, epochs=epochs, lr=lr, batch_size=batch_size, grid=grid)
    load(config, changes)  # refuses a wrong config before torch is imported

    forks = warm.is_untouched()
    with without_collections():
        from halfstep.advise.compared import predict
        from halfstep.advise.predict.gpus import parse_gpus
        from halfstep.compare.command import Request, run
        from halfstep.compare.output.tables import parse_exports

    request = Request(
        config=config,
        recipes=recipes,
        seeds=seeds,
        looks=looks,
        margin=margin,
        aa=aa,
        control=control,
        options=changes,
        axes=grid or (),
        device=device,
        devices=devices,
        processes=processes,
        on=on,
        time_limit=time_limit,
        exports=parse_exports(export),
        tag=tag,
        out=out,
        gpus=None if gpu is None else parse_gpus(gpu),
        fresh=fresh,
    )
    if not run(request, predict, forks=forks):
        raise typer.Exit(1)
