"""The device that is here: its datasheet, and the file of its measured operators."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch

from halfstep.advise.predict.gpus import gpu as named
from halfstep.advise.predict.measured import own_folder
from halfstep.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from halfstep.advise.predict.gpus import Gpu

_MAKERS = re.compile(
    r"\b(NVIDIA|GeForce|AMD|Radeon|Instinct|Tesla|Generation|HBM\w*|Tensor|Core)\b"
)


def gpu_of(device: torch.device) -> Gpu:
    """Return the datasheet of a device, by its name.

    Raises:
        UserError: If the name is not that of one GPU of the table.
    """
    if device.type != "cuda":
        raise UserError(
            f"--device is {device}, which no datasheet in the table describes; add --gpu "
            "mine.toml, a file that does"
        )
    name = torch.cuda.get_device_name(device)
    for short in (name, _MAKERS.sub("", name), _MAKERS.sub("", name).replace("80GB", "SXM")):
        try:
            return named(short)
        except UserError:
            continue
    raise UserError(
        f"this GPU calls itself {name!r}, which is no name in the table; add --gpu with its name "
        "(--gpu list prints all) or with a file that describes it"
    )


def own_file(gpu: Gpu) -> Path:
    """Return the file of the user's measurements on a GPU."""
    return own_folder() / f"{gpu.key}.json"
