"""Crops and flips whole batches of images that are in the memory of a device.

All random numbers come from one generator on the CPU, so that a batch is the same on every device.
Everything else runs where the images are: each pixel of a crop is gathered from its image, without
a copy of the image. The distributions are those of torchvision's RandomCrop, RandomResizedCrop and
RandomHorizontalFlip.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from halfstep.errors import UserError

if TYPE_CHECKING:
    from halfstep.train.config.augment import Augmentation

_RATIO = (3 / 4, 4 / 3)
_ATTEMPTS = 10
"""Boxes that RandomResizedCrop draws for an image before it takes the largest central one."""
_AT_ONCE = 64
"""Images that are resampled at a time, which bounds the memory for the indices of their pixels."""
_ONLY_IN_LOADERS = ("randaugment", "policy", "color_jitter")


def refuse(settings: Augmentation) -> None:
    """Refuse augmentation that only the loader processes can do.

    Raises:
        UserError: If a setting changes single images in another way than by crops and flips.
    """
    for name in _ONLY_IN_LOADERS:
        given = getattr(settings, name)
        if given and given != "none":
            off = "none" if name == "policy" else 0
            raise UserError(
                f"data.augment.{name} is {given!r}, which data.cache_images: device cannot do; "
                f"write data.augment.{name}: {off}, or data.cache_images: ram"
            )


def flips(settings: Augmentation, count: int, chance: torch.Generator) -> torch.Tensor:
    """Draw which images are flipped horizontally: bool, shape (count,), on the CPU."""
    return torch.rand(count, generator=chance) < settings.flip


def shifted(
    images: torch.Tensor, chosen: torch.Tensor, settings: Augmentation, chance: torch.Generator
) -> torch.Tensor:
    """Return chosen images, each shifted within a black border and flipped at random.

    Args:
        images: All images, shape (images, channels, side, side), on any device.
        chosen: Indices of the images, int64, shape (N,), on the CPU.
        settings: The augmentation settings; the border is empty unless `crop` is "padded".
        chance: CPU generator of all random numbers.

    Returns:
        Shape (N, channels, side, side), with the dtype and on the device of `images`.
    """
    count, side = len(chosen), images.shape[-1]
    border = round(settings.padding * side) if settings.crop == "padded" else 0
    offsets = torch.randint(2 * border + 1, (2, count), generator=chance) - border
    flipped = flips(settings, count, chance)
    drawn = torch.stack([chosen, *offsets, flipped.long()]).to(images.device, non_blocking=True)
    chosen, top, left, flipped = drawn
    line = torch.arange(side, device=images.device)
    columns = torch.where(flipped[:, None] > 0, side - 1 - line, line) + left[:, None]
    rows = line + top[:, None]
    channels = torch.arange(images.shape[1], device=images.device)
    pixels = images[
        chosen[:, None, None, None],
        channels[:, None, None],
        rows.clamp(0, side - 1)[:, None, :, None],
        columns.clamp(0, side - 1)[:, None, None, :],
    ]
    if border == 0:
        return pixels
    outside = [(places < 0) | (places >= side) for places in (rows, columns)]
    return pixels.masked_fill_((outside[0][:, :, None] | outside[1][:, None, :])[:, None], 0)


@dataclass(frozen=True, slots=True)
class Boxes:
    """The part of each image that becomes a crop: int64 on the CPU, shape (N,) each."""

    top: torch.Tensor
    left: torch.Tensor
    height: torch.Tensor
    width: torch.Tensor


def boxes(
    heights: torch.Tensor,
    widths: torch.Tensor,
    scale: tuple[float, float],
    chance: torch.Generator,
) -> Boxes:
    """Draw a box of random area and aspect ratio in each image, as RandomResizedCrop does.

    Args:
        heights: Heights of the images, int64, shape (N,).
        widths: Widths of the images.
        scale: Smallest and largest share of the image's area.
        chance: CPU generator of all random numbers.
    """
    count = len(heights)
    share, ratio = torch.rand(2, count, _ATTEMPTS, generator=chance)
    area = (heights * widths)[:, None] * (scale[0] + share * (scale[1] - scale[0]))
    low, high = (math.log(bound) for bound in _RATIO)
    ratio = (low + ratio * (high - low)).exp()
    wide, tall = (area * ratio).sqrt().round().long(), (area / ratio).sqrt().round().long()
    fits = (wide > 0) & (wide <= widths[:, None]) & (tall > 0) & (tall <= heights[:, None])
    first = fits.int().argmax(1, keepdim=True)
    # The largest box in the middle whose ratio is allowed, if no attempt fits.
    own = (widths / heights).clamp(*_RATIO)
    full_wide = torch.minimum(widths, (heights * own).round().long())
    full_tall = torch.minimum(heights, (widths / own).round().long())
    fitting = fits.any(1)
    wide = torch.where(fitting, wide.gather(1, first)[:, 0], full_wide)
    tall = torch.where(fitting, tall.gather(1, first)[:, 0], full_tall)
    y, x = torch.rand(2, count, generator=chance)
    room_y, room_x = heights - tall, widths - wide
    top = torch.where(fitting, (y * (room_y + 1)).long().clamp(max=room_y), room_y // 2)
    left = torch.where(fitting, (x * (room_x + 1)).long().clamp(max=room_x), room_x // 2)
    return Boxes(top, left, tall, wide)


def resampled(
    pixels: torch.Tensor,
    starts: torch.Tensor,
    widths: torch.Tensor,
    planes: torch.Tensor,
    cut: Boxes,
    flipped: torch.Tensor,
    *,
    channels: int,
    side: int,
    interpolation: str,
) -> torch.Tensor:
    """Return boxes of images of any size, resized with antialiasing to one size.

    Args:
        pixels: All images one after the other, each (channels, height, width), uint8, flat.
        starts: Where each image starts in `pixels`, int64, shape (N,), on the CPU.
        widths: Widths of the images.
        planes: Pixels of one channel of each image: height x width.
        cut: The box of each image.
        flipped: Whether each image is flipped horizontally, bool, shape (N,), on the CPU.
        channels: Number of channels.
        side: Height and width of the result.
        interpolation: "bilinear" or "bicubic".

    Returns:
        uint8, shape (N, channels, side, side), on the device of `pixels`.
    """
    device = pixels.device
    kept = []
    for at in range(0, len(starts), _AT_ONCE):
        part = slice(at, at + _AT_ONCE)
        rows, of_rows = _taps(cut.top[part], cut.height[part], side, interpolation)
        columns, of_columns = _taps(cut.left[part], cut.width[part], side, interpolation)
        turned = flipped[part, None, None]
        columns = torch.where(turned, columns.flip(1), columns)
        of_columns = torch.where(turned, of_columns.flip(1), of_columns)
        # The lines of each image from its first to its last column in use.
        first = columns.amin((1, 2))
        span = int((columns.amax((1, 2)) - first).max()) + 1
        plane = torch.arange(channels) * planes[part, None]
        numbers = torch.stack([starts[part], widths[part], first, planes[part] * channels])
        numbers, plane, rows, columns, of_rows, of_columns = (
            tensor.to(device, non_blocking=True)
            for tensor in (
                numbers,
                plane,
                rows,
                columns - first[:, None, None],
                of_rows,
                of_columns,
            )
        )
        start, width, first, size = numbers[:, :, None, None, None]
        across = torch.arange(span, device=device)
        base = start + plane[:, :, None, None] + first + across
        lines = torch.zeros((), device=device)
        for tap in range(rows.shape[2]):
            index = base + rows[:, None, :, None, tap] * width
            # A line that is narrower than the widest one ends in pixels that have no weight.
            index = torch.minimum(index, start + size - 1)
            lines = lines + pixels[index] * of_rows[:, None, :, None, tap]
        result = torch.zeros((), device=device)
        for tap in range(columns.shape[2]):
            index = columns[:, None, None, :, tap].expand(*lines.shape[:3], side)
            result = result + lines.gather(3, index) * of_columns[:, None, None, :, tap]
        kept.append(result.round_().clamp_(0, 255).to(torch.uint8))
    return torch.cat(kept)


def _taps(
    first: torch.Tensor, length: torch.Tensor, side: int, interpolation: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the pixels that each pixel of a resized line consists of, and their weights.

    The filter is as wide as a pixel of the result if the line shrinks, as in torch's
    `interpolate(antialias=True)` and in Pillow.

    Args:
        first: The first pixel of each line, int64, shape (N,).
        length: The pixels of each line.
        side: Pixels of the resized line.
        interpolation: "bilinear" or "bicubic".

    Returns:
        Positions, int64, and weights, fp32, of the shape (N, side, taps).
    """
    reach = 1.0 if interpolation == "bilinear" else 2.0
    scale = (length.double() / side)[:, None]
    wide = scale.clamp(min=1.0)
    centre = (torch.arange(side) + 0.5) * scale
    low = (centre - reach * wide + 0.5).long().clamp(min=0)
    taps = int((2 * reach * wide).ceil().max()) + 1
    places = low[:, :, None] + torch.arange(taps)
    distance = ((places + 0.5 - centre[:, :, None]) / wide[:, :, None]).abs()
    weights = (1 - distance).clamp(min=0) if interpolation == "bilinear" else _cubic(distance)
    weights = torch.where(places < length[:, None, None], weights, 0.0)
    weights /= weights.sum(2, keepdim=True)
    places = torch.minimum(places, length[:, None, None] - 1) + first[:, None, None]
    return places, weights.float()


def _cubic(distance: torch.Tensor) -> torch.Tensor:
    """Return Keys' cubic filter with a = -0.5, which torch takes for antialiasing."""
    near = (1.5 * distance - 2.5) * distance**2 + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    return torch.where(distance < 1, near, torch.where(distance < 2, far, 0.0))
