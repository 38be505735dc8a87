"""Resizes and augments single images with torchvision's v2 transforms.

The transforms process uint8 tensors in the worker that read the image; `batch_augment` processes
whole batches on the device. All random numbers come from torch's global generator, so that its seed
before each image determines the augmentation of that image.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchvision.transforms import InterpolationMode, v2

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from halfstep.train.config.augment import Augmentation, AugmentConfig


def build(
    config: AugmentConfig, resolution: int, *, train: bool
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that resizes an image to the resolution and, in training, augments it.

    Returns:
        A function from uint8 (channels, height, width) of any size to uint8
        (channels, resolution, resolution). It can be pickled, for workers.
    """
    settings = config.settings()
    steps = _training_crop(settings, resolution) if train else _centre_crop(settings, resolution)
    if train and settings.flip:
        steps.append(v2.RandomHorizontalFlip(settings.flip))
    bilinear = InterpolationMode.BILINEAR
    if train and settings.randaugment:
        strength = settings.randaugment_ops, settings.randaugment
        steps.append(v2.RandAugment(*strength, interpolation=bilinear))
    if train and settings.policy == "trivial":
        steps.append(v2.TrivialAugmentWide(interpolation=bilinear))
    elif train and settings.policy != "none":
        policy = v2.AutoAugmentPolicy(settings.policy)
        steps.append(v2.AutoAugment(policy, interpolation=bilinear))
    if train and settings.color_jitter:
        steps.append(v2.ColorJitter(*[settings.color_jitter] * 3))
    composed: Callable[[torch.Tensor], torch.Tensor] = v2.Compose(steps)
    return composed


def _training_crop(settings: Augmentation, resolution: int) -> list[v2.Transform]:
    if settings.crop == "resized":
        interpolation = InterpolationMode(settings.interpolation)
        return [
            v2.RandomResizedCrop(
                resolution, settings.crop_scale, interpolation=interpolation, antialias=True
            )
        ]
    steps = _centre_crop(settings, resolution)
    if settings.crop == "padded":
        steps.append(v2.RandomCrop(resolution, padding=round(settings.padding * resolution)))
    return steps


def _centre_crop(settings: Augmentation, resolution: int) -> list[v2.Transform]:
    interpolation = InterpolationMode(settings.interpolation)
    shorter_edge = round(resolution / settings.val_crop)
    return [
        v2.Resize(shorter_edge, interpolation=interpolation, antialias=True),
        v2.CenterCrop(resolution),
    ]
