"""Processes a whole batch on the device: normalisation, random erasing, mixup and CutMix.

Images are copied to the device as uint8, a quarter of the bytes of fp32. All random numbers come
from one generator on the CPU, so that a batch is changed in the same way on every device, and the
CPU never waits for the device. torchvision's v2.MixUp and v2.CutMix and timm's RandomErasing draw
from process-wide generators: a batch would depend on all earlier draws, and a resumed run would
draw other numbers (`benchmarks/kept.py`).
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
    """Normalise pixels from 0 to 255 by the mean and standard deviation of each channel.

    Args:
        images: uint8, shape (N, channels, height, width), on any device.
        mean: Mean of each channel, for pixel values from 0 to 1.
        std: Standard deviation of each channel, for pixel values from 0 to 1.

    Returns:
        The normalised images in fp32, with the shape and memory format of `images`.
    """
    # Compute x / 255 / std - mean / std as one multiplication and one addition; the constants are
    # rounded to fp32 only once.
    scale = torch.tensor([1 / (255 * deviation) for deviation in std])
    shift = torch.tensor([-centre / deviation for centre, deviation in zip(mean, std, strict=True)])
    scale, shift = (
        channels.view(-1, 1, 1).to(images.device, non_blocking=True) for channels in (scale, shift)
    )
    if images.is_cuda:  # CUDA kernels convert uint8 as they read, without an extra pass
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
    """Apply random erasing, then mixup or CutMix, as `settings` requires.

    Args:
        settings: The augmentation settings.
        images: fp32, normalised, shape (N, channels, height, width), on any device; not changed.
        labels: Class indices, int64, shape (N,), on the same device.
        classes: Number of classes.
        generator: CPU generator of all random numbers.

    Returns:
        The images and the labels. The labels are unchanged, or with mixup or CutMix fp32
        probabilities of shape (N, classes).
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
    """Blend each image of a batch with the image before it (Zhang et al. 2018, section 2).

    Args:
        images: Shape (N, channels, height, width).
        labels: Probabilities, shape (N, classes).
        share: Weight of the image itself, from 0 to 1; the image before it has weight 1 - share.
    """
    return images.roll(1, 0).lerp_(images, share), labels.roll(1, 0).lerp_(labels, share)


def cutmix(
    images: torch.Tensor, labels: torch.Tensor, share: float, generator: torch.Generator
) -> Batch:
    """Paste a rectangle of each image into the next one (Yun et al. 2019, equations 1 and 2).

    Args:
        images: Shape (N, channels, height, width).
        labels: Probabilities, shape (N, classes); they are mixed by the area that is really pasted.
        share: Share of each image's area that is not replaced, from 0 to 1, if the rectangle lies
            completely inside the image.
        generator: CPU generator of the rectangle's centre.
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

    The rectangle covers 2 % to a third of the image, with an aspect ratio from 0.3 to 3.3. If it is
    higher or wider than the image, it is cut to the image's height or width.

    Args:
        images: Normalised, shape (N, channels, height, width); not changed.
        probability: Probability that a rectangle of an image is erased.
        generator: CPU generator of all random numbers.
    """
    count, _, height, width = images.shape
    happens, area, aspect, y, x = torch.rand(5, count, generator=generator)
    area = _ERASED_AREA[0] + area * (_ERASED_AREA[1] - _ERASED_AREA[0])
    low, high = (math.log(ratio) for ratio in _ERASED_ASPECT)
    aspect = (low + aspect * (high - low)).exp()
    tall = ((area * aspect).sqrt() * height).round().clamp(1, height)
    wide = ((area / aspect).sqrt() * width).round().clamp(1, width)
    top, left = (y * (height - tall)).round(), (x * (width - wide)).round()
    tall = tall * (happens < probability)  # height 0 for images that are not erased
    edges = torch.stack([top, top + tall, left, left + wide]).to(images.device, non_blocking=True)
    top, bottom, left, right = edges[:, :, None]
    rows = torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device)
    in_rows = (rows >= top) & (rows < bottom)
    in_columns = (columns >= left) & (columns < right)
    erased = in_rows[:, :, None] & in_columns[:, None, :]
    return images.masked_fill(erased[:, None], 0)


def _share(alpha: float, generator: torch.Generator) -> float:
    # torch's Beta distribution accepts no generator; NumPy's draws from a given one.
    seed = int(torch.randint(2**63 - 1, (), generator=generator))
    return float(np.random.default_rng(seed).beta(alpha, alpha))
