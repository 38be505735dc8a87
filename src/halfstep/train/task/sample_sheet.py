"""A picture of some validation images, each with its true and its predicted class below it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image, ImageDraw
from torchvision.utils import make_grid

if TYPE_CHECKING:
    from collections.abc import Sequence

COUNT = 8
_TILE = 96
_LINE = 12
_LETTERS = _TILE // 6  # the built-in font is 6 pixels wide
_RIGHT, _WRONG = (96, 200, 96), (255, 112, 96)


def draw(
    images: torch.Tensor,
    labels: torch.Tensor,
    predictions: torch.Tensor,
    *,
    classes: Sequence[str],
    normalisation: tuple[Sequence[float], Sequence[float]],
) -> torch.Tensor:
    """Draw the images in a grid, with their true and predicted classes.

    Args:
        images: Inputs of the model: normalised, shape (N, channels, height, width), any device. The
            first three channels are shown; with fewer than three, only the first one.
        labels: Indices of the true classes, shape (N,).
        predictions: Indices of the predicted classes, shape (N,); their names are green if right,
            red if wrong.
        classes: Names of the classes.
        normalisation: Mean and standard deviation of each channel, to undo the normalisation.

    Returns:
        The picture, uint8, shape (3, height, width), with four images in a row.
    """
    centre, spread = (torch.tensor(values).view(-1, 1, 1) for values in normalisation)
    pixels = images.detach().cpu().float() * spread + centre
    tiles = [
        _tile(image, classes[label], classes[predicted], right=label == predicted)
        for image, label, predicted in zip(
            pixels, labels.tolist(), predictions.tolist(), strict=True
        )
    ]
    sheet: torch.Tensor = make_grid(tiles, nrow=4, padding=4, pad_value=0)
    return sheet


def _tile(image: torch.Tensor, true: str, predicted: str, *, right: bool) -> torch.Tensor:
    shown = image[:3] if len(image) >= 3 else image[:1]
    levels = shown.clamp(0, 1).mul(255).round().to(torch.uint8).expand(3, -1, -1)
    picture = Image.fromarray(levels.permute(1, 2, 0).numpy())
    tile = Image.new("RGB", (_TILE, _TILE + 2 * _LINE))
    tile.paste(picture.resize((_TILE, _TILE), Image.Resampling.NEAREST))
    pen = ImageDraw.Draw(tile)
    pen.text((0, _TILE), _plain(true), fill=(255, 255, 255))
    pen.text((0, _TILE + _LINE), _plain(predicted), fill=_RIGHT if right else _WRONG)
    return torch.from_numpy(np.array(tile)).permute(2, 0, 1)


def _plain(name: str) -> str:
    """Cut a name to the tile's width, with "?" for letters that the built-in Latin font lacks."""
    return name.encode("latin-1", "replace").decode("latin-1")[:_LETTERS]
