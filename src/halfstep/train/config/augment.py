"""The config section of image augmentation: crops, changes, mixing and normalization.

A preset gives every setting a value; each field that is set overrides that value.
`AugmentConfig.settings()` returns the result, which the data code reads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field, Strict, field_validator, model_validator

from halfstep import caller
from halfstep.errors import UserError
from halfstep.train.config.section import Section

Crop = Literal["none", "resized", "padded"]
Interpolation = Literal["bilinear", "bicubic"]
Policy = Literal["none", "imagenet", "cifar10", "svhn", "trivial"]
_Part = Annotated[float, Field(gt=0, le=1)]
# Not strict, since YAML has lists where Python has tuples.
Pair = Annotated[tuple[_Part, _Part], Strict(strict=False)]
Channels = Annotated[tuple[float, ...], Strict(strict=False)]
Normalisation = tuple[Channels, Channels]

_IMAGENET: Normalisation = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_IMAGENET_GREY: Normalisation = (0.449,), (0.226,)  # the averages of the three channels


@dataclass(frozen=True, slots=True)
class Augmentation:
    """Complete augmentation settings; see the fields of `AugmentConfig`."""

    crop: Crop
    flip: float
    val_crop: float
    crop_scale: tuple[float, float] = (0.08, 1.0)
    padding: float = 0.125
    interpolation: Interpolation = "bilinear"
    randaugment: int = 0
    randaugment_ops: int = 2
    policy: Policy = "none"
    color_jitter: float = 0.0
    erase: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0

    @property
    def mixes_labels(self) -> bool:
        """Whether training labels become probabilities."""
        return self.mixup > 0 or self.cutmix > 0


_CROP_FLIP = Augmentation(crop="resized", flip=0.5, val_crop=0.875)
_RANDAUGMENT = replace(_CROP_FLIP, randaugment=9)
PRESETS: dict[str, Augmentation] = {
    "none": Augmentation(crop="none", flip=0.0, val_crop=1.0),
    "crop-flip": _CROP_FLIP,
    "pad-flip": Augmentation(crop="padded", flip=0.5, val_crop=1.0),
    "randaugment": _RANDAUGMENT,
    "mixed": replace(_RANDAUGMENT, erase=0.25, mixup=0.2, cutmix=1.0),
}


class AugmentConfig(Section):
    """Cropping, augmentation and normalization of the images."""

    preset: Literal["none", "crop-flip", "pad-flip", "randaugment", "mixed"] = "none"
    """Values for the fields below that are null. "none" changes no image. "crop-flip" is the usual
    choice for photographs (random resized crops and horizontal flips); "pad-flip" is for small
    images such as CIFAR's (shifts by up to an eighth and horizontal flips). "randaugment" adds
    RandAugment to crop-flip, and "mixed" also adds random erasing, mixup and CutMix."""
    crop: Crop | None = None
    """How training images are cropped to the resolution: "resized" takes a crop of random area and
    aspect ratio, "padded" takes a random crop of the image with a black border, and "none" takes
    the same center crop as validation."""
    crop_scale: Pair | None = None
    """Smallest and largest share of the image's area for crop: resized."""
    padding: float | None = Field(None, gt=0, le=0.5)
    """Width of the border for crop: padded, as a share of the resolution."""
    val_crop: float | None = Field(None, gt=0, le=1)
    """Share of the shorter edge that the center crop of validation keeps."""
    interpolation: Interpolation | None = None
    """Interpolation of resizing, always with antialiasing."""
    flip: float | None = Field(None, ge=0, le=1)
    """Probability of a horizontal flip of a training image."""
    randaugment: int | None = Field(None, ge=0, le=30)
    """Magnitude of RandAugment, up to 30; 0 turns it off."""
    randaugment_ops: int | None = Field(None, ge=1, le=14)
    """Number of operations that RandAugment applies to an image."""
    policy: Policy | None = None
    """A policy instead of RandAugment: AutoAugment's policy for "imagenet", "cifar10" or "svhn", or
    "trivial" for TrivialAugment; "none" turns it off."""
    color_jitter: float | None = Field(None, ge=0, le=1)
    """Strength of color jitter: brightness, contrast and saturation of a training image are each
    multiplied by a random factor from 1 - color_jitter to 1 + color_jitter; 0 turns it off."""
    erase: float | None = Field(None, ge=0, le=1)
    """Probability of random erasing: a rectangle of a training image is replaced by the mean
    color."""
    mixup: float | None = Field(None, ge=0, le=100)
    """Alpha of mixup: pairs of images and their labels are blended in a proportion drawn from
    Beta(alpha, alpha); 0 turns it off. With CutMix, each batch gets one of the two at random."""
    cutmix: float | None = Field(None, ge=0, le=100)
    """Alpha of CutMix: a rectangle of one image is pasted into another, and the labels are mixed by
    its area, which is drawn from Beta(alpha, alpha); 0 turns it off."""
    mean: Channels | None = None
    """Mean of each channel for normalization, for values from 0 to 1; null uses ImageNet's."""
    std: Channels | None = None
    """Standard deviation of each channel, for values from 0 to 1; null uses ImageNet's."""

    @field_validator("std")
    @classmethod
    def _is_positive(cls, given: Channels | None) -> Channels | None:
        if given is not None and min(given, default=1.0) <= 0:
            raise ValueError(f"{list(given)!r} has a value that is not above 0")
        return given

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> AugmentConfig:
        if self.crop_scale is not None and self.crop_scale[0] > self.crop_scale[1]:
            small, large = self.crop_scale
            raise ValueError(f"crop_scale is [{small}, {large}]; write it as [{large}, {small}]")
        for name, one in (("mean", self.mean), ("std", self.std)):
            if one is not None and len(one) not in {1, 3}:
                raise ValueError(f"{name} has {len(one)} values; allowed: 1 (grey) or 3 (RGB)")
        chosen = self.settings()
        if chosen.policy != "none" and chosen.randaugment:
            raise ValueError(
                f"policy is {chosen.policy!r} and randaugment is {chosen.randaugment}; write "
                "randaugment: 0, or policy: none"
            )
        for name, idle, write in (
            ("padding", chosen.crop != "padded", "crop: padded"),
            ("crop_scale", chosen.crop != "resized", "crop: resized"),
            ("randaugment_ops", not chosen.randaugment, "randaugment: 9"),
        ):
            if getattr(self, name) is not None and idle:
                raise ValueError(
                    f"{name} is given and has no effect; write {write}, or {name}: null"
                )
        return self

    def settings(self) -> Augmentation:
        """Return the settings of the preset, overridden by the fields that are set."""
        fields = Augmentation.__dataclass_fields__
        given = {name: value for name in fields if (value := getattr(self, name)) is not None}
        return replace(PRESETS[self.preset], **given)

    def normalisation(self, channels: int) -> Normalisation:
        """Return the mean and standard deviation of each channel, for pixel values from 0 to 1.

        Args:
            channels: 1 (grey) or 3 (RGB).

        Raises:
            UserError: If the config has them for another number of channels, or if it has none and
                the images are neither grey nor RGB.
        """
        defaults = {1: _IMAGENET_GREY, 3: _IMAGENET}.get(channels, ((), ()))
        mean, std = self.mean or defaults[0], self.std or defaults[1]
        for name, one in (("mean", mean), ("std", std)):
            if len(one) != channels:
                instead = caller.fields({f"data.augment.{name}": [0.5] * channels})
                raise UserError(
                    f"data.augment.{name} has {len(one)} values, but the images have {channels} "
                    f"channels; write {instead} with {channels} values of your own"
                )
        return mean, std
