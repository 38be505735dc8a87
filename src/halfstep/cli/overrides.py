"""The flags that override fields of a config: `--options`, and one for each field changed most.

`--epochs 3 --lr 0.1` is the same as `--options epochs=3 optimizer.lr=0.1`. A field may be set by
one of the two, not by both.
"""

import math
from collections.abc import Iterable
from typing import Annotated

import typer

from halfstep.errors import UserError

FIELDS = {"--epochs": "epochs", "--lr": "optimizer.lr", "--batch-size": "batch_size"}
"""The field of the config that each flag sets."""

OptionsFlag = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE ...",
        help="Override settings of the config; values are YAML: "
        "--options optimizer.lr=0.02 epochs=3",
    ),
]
EpochsFlag = Annotated[
    int | None, typer.Option(min=1, help="Number of passes over the training images.")
]
LrFlag = Annotated[float | None, typer.Option(help="Learning rate (optimizer.lr).")]
BatchSizeFlag = Annotated[
    int | None, typer.Option(min=1, help="Number of images in a micro-batch of one process.")
]


def overrides(
    options: Iterable[str] | None,
    *,
    epochs: int | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    grid: Iterable[str] | None = None,
) -> list[str]:
    """Return the overrides of `--options` and of the flags, in the form of `--options`.

    Args:
        options: The values of `--options`.
        epochs: The value of `--epochs`; None if it is not given, as for the other flags.
        lr: The value of `--lr`.
        batch_size: The value of `--batch-size`.
        grid: The values of `--grid`, which may not set the field of a flag either.

    Raises:
        UserError: If a field is set twice, or a value of `--options` is not KEY=VALUE.
    """
    settings = list(options or ())
    flags = dict(zip(FIELDS, (epochs, lr, batch_size), strict=True))
    given = {flag: value for flag, value in flags.items() if value is not None}
    if not given:
        return settings
    from halfstep.train.config.files import flat, parse_options

    if lr is not None and not 0 < lr < math.inf:
        raise UserError(f"--lr is {lr:g}; allowed: greater than 0; write --lr 0.1")
    others = {key: f"--options {text}" for text in settings for key in flat(parse_options([text]))}
    others |= {text.partition("=")[0]: f"--grid {text}" for text in grid or ()}
    for flag, value in given.items():
        field = FIELDS[flag]
        if field in others:
            raise UserError(f"{flag} {value} and {others[field]} both set {field}; write one")
    return [*settings, *(f"{FIELDS[flag]}={value}" for flag, value in given.items())]
