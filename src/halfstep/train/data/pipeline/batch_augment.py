"""What happens to a whole batch on the device: normalisation, random erasing, mixup and CutMix.

Images cross the bus as uint8, a quarter of the bytes. All chance comes from one generator on the
CPU, so that a batch is changed alike on every device, and nothing waits for the device.
torchvision's v2.MixUp and v2.CutMix and timm's RandomErasing draw from process-wide generators: a
batch would depend on whatever has drawn before, and a resume would see others
(`benchmarks/kept.py`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

if TYPE_CHECKING:
    from halfstep.train.config.augment import Augmentation, Channels
    from halfstep.train.data.pipeline.batches import Batch

_ERASED_AREA = (0.02, 1 / 3)
_ERASED_ASPECT = (0.3, 1 / 0.3)


def normalise(images: torch.Tensor, mean: Channels, std: Channels) -> torch.Tensor:
    """Bring pixels from 0..255 to mean 0 and standard deviation 1.

    Args:
        images: uint8, shape (N, channels, height, width), on any device.
        mean: Of each channel, for values from 0 to 1.
        std: Of each channel, for values from 0 to 1.

    Returns:
        The same shape and memory order in fp32.
    """
    # x / 255 / std - mean / std, as one multiplication and one addition; the constants are rounded
    # to fp32 once.
    scale = torch.tensor([1 / (255 * each) for each in std])
    shift = torch.tensor([-centre / each for centre, each in zip(mean, std, strict=True)])
    scale, shift = (
        each.view(-1, 1, 1).to(images.device, non_blocking=True) for each in (scale, shift)
    )
    if images.is_cuda:  # its kernels convert what they read, so that no pass of its own does
        return torch.mul(images, scale).add_(shift)
    return images.to(torch.float32).mul_(scale).add_(shift)


def augment(
    settings: Augmentation,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    classes: int,
    generator: torch.Generator,
) -> Batch:
    """Erase, then mix, as the settings say.

    Args:
        settings: What to do.
        images: fp32, normalised, shape (N, channels, height, width), on any device; not changed.
        labels: int64, shape (N,), on the same device.
        classes: Number of classes.
        generator: Where chance comes from, on the CPU.

    Returns:
        The images, and the labels as they were, or with mixup or CutMix as probabilities of shape
        (N, classes) in fp32.
    """
    if settings.erase:
        images = erase(images, settings.erase, generator)
    if not settings.mixes_labels:
        return images, labels
    chances = functional.one_hot(labels, classes).to(images.dtype)
    both = settings.mixup > 0 and settings.cutmix > 0
    pastes = settings.cutmix > 0
    if both:
        pastes = torch.rand((), generator=generator).item() < 0.5
    if pastes:
        return cutmix(images, chances, _share(settings.cutmix, generator), generator)
    return mixup(images, chances, _share(settings.mixup, generator))


def mixup(images: torch.Tensor, labels: torch.Tensor, share: float) -> Batch:
    """Blend each image of a batch with the one before it (Zhang et al. 2018, section 2).

    Args:
        images: Shape (N, channels, height, width).
        labels: Probabilities, shape (N, classes).
        share: How much of each image stays, from 0 to 1.
    """
    return images.roll(1, 0).lerp_(images, share), labels.roll(1, 0).lerp_(labels, share)


def cutmix(
    images: torch.Tensor, labels: torch.Tensor, share: float, generator: torch.Generator
) -> Batch:
    """Paste a rectangle of each image into the next one (Yun et al. 2019, equations 1 and 2).

    Args:
        images: Shape (N, channels, height, width).
        labels: Probabilities, shape (N, classes); mixed by the area that was really pasted.
        share: How much of each image stays, from 0 to 1, where the rectangle lies wholly inside.
        generator: Draws the rectangle's centre.
    """
    height, width = images.shape[-2:]
    middle_y, middle_x = torch.rand(2, generator=generator).tolist()
    half = math.sqrt(1 - share) / 2
    top, bottom = (round(height * min(max(middle_y + side, 0), 1)) for side in (-half, half))
    left, right = (round(width * min(max(middle_x + side, 0), 1)) for side in (-half, half))
    mixed = images.clone()
    mixed[..., top:bottom, left:right] = images.roll(1, 0)[..., top:bottom, left:right]
    kept = 1 - (bottom - top) * (right - left) / (height * width)
    return mixed, labels.roll(1, 0).lerp_(labels, kept)


def erase(images: torch.Tensor, probability: float, generator: torch.Generator) -> torch.Tensor:
    """Set a random rectangle of some images to 0, the mean colour (Zhong et al. 2020, algorithm 1).

    The rectangle covers 2 % to a third of the image with an aspect ratio from 0.3 to 3.3; where it
    would not fit it is cut to the image.

    Args:
        images: Normalised, shape (N, channels, height, width); not changed.
        probability: Of an image to be erased at all.
        generator: Where chance comes from, on the CPU.
    """
    count, _, height, width = images.shape
    happens, area, aspect, y, x = torch.rand(5, count, generator=generator)
    area = _ERASED_AREA[0] + area * (_ERASED_AREA[1] - _ERASED_AREA[0])
    low, high = (math.log(each) for each in _ERASED_ASPECT)
    aspect = (low + aspect * (high - low)).exp()
    tall = ((area * aspect).sqrt() * height).round().clamp(1, height)
    wide = ((area / aspect).sqrt() * width).round().clamp(1, width)
    top, left = (y * (height - tall)).round(), (x * (width - wide)).round()
    tall = tall * (happens < probability)  # an image that stays has a rectangle without rows
    edges = torch.stack([top, top + tall, left, left + wide]).to(images.device, non_blocking=True)
    top, bottom, left, right = edges[:, :, None]
    rows = torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device)
    in_rows = (rows >= top) & (rows < bottom)
    in_columns = (columns >= left) & (columns < right)
    erased = in_rows[:, :, None] & in_columns[:, None, :]
    return images.masked_fill(erased[:, None], 0)


def _share(alpha: float, generator: torch.Generator) -> float:
    # torch draws from Beta without a generator of one's own, NumPy does not.
    seed = int(torch.randint(2**63 - 1, (), generator=generator))
    return float(np.random.default_rng(seed).beta(alpha, alpha))
