"""`halfstep predict RUN images...`: the class of each image, as a submission file."""

from pathlib import Path
from typing import Annotated

import typer

from halfstep.cli.eval import CheckpointFlag, Which
from halfstep.cli.start_up import without_collections
from halfstep.cli.train import ColumnsFlag, DeviceFlag
from halfstep.errors import UserError
from halfstep.plurals import counted


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("predict", short_help="Predict the classes of images with a run's model.")(predict)


def predict(  # noqa: PLR0913, PLR0917  # its parameters are the flags of the command
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run directory, such as runs/digits/fp32-seed0.")
    ],
    images: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGES", help="Images, folders of images, or CSV files with a column image."
        ),
    ],
    csv: Annotated[
        Path | None, typer.Option(help="CSV file to write; default: standard output.")
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(help="Base folder of the paths in a CSV file; default: the file's folder."),
    ] = None,
    probabilities: Annotated[
        bool,
        typer.Option("--probabilities", help="Add a column probability_CLASS for each class."),
    ] = False,
    top_k: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="K",
            help="Add the K most probable classes and their probabilities: "
            "probability,label_2,probability_2,...",
        ),
    ] = None,
    ensemble: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="RUN",
            help="Another run whose probabilities are averaged with RUN's, for example another "
            "fold; may be repeated.",
        ),
    ] = None,
    flip: Annotated[
        bool,
        typer.Option("--flip", help="Average the predictions of each image and its mirror image."),
    ] = False,
    columns: ColumnsFlag = None,
    checkpoint: CheckpointFlag = Which.best,
    device: DeviceFlag = None,
) -> None:
    """Classify images with the model of RUN; write one line image,label per image, in order.

    Exit code 1: an image cannot be read. stderr names it, and the output leaves it out.
    """
    from halfstep.train.after.run_config import config_of

    if probabilities and top_k is not None:
        raise UserError(f"--probabilities and --top-k {top_k} are both given; write one of them")
    for folder in (run, *(ensemble or ())):
        config_of(folder, device)  # refuses a wrong directory before torch is imported
    with without_collections():
        from halfstep.files import write_atomically
        from halfstep.train.after.predict import predict as predict_images
        from halfstep.train.data.sources.csv_rows import columns_of

    predictions = predict_images(
        [run, *(ensemble or ())],
        images,
        which=checkpoint.value,
        device=device,
        root=root,
        top=top_k,
        columns=columns_of(columns) if columns is not None else None,
        flip=flip,
    )
    text = predictions.csv(probabilities=probabilities, top=top_k)
    if csv is None:
        typer.echo(text, nl=False)
    else:
        write_atomically(csv, text)
        typer.echo(f"{counted(len(predictions.labels), 'image')} classified: {csv}")
    for line in predictions.unreadable:
        typer.echo(f"left out: {line}", err=True)
    if predictions.unreadable:
        raise typer.Exit(1)
