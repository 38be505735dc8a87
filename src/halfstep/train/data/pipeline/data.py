"""A data set ready for training: batches of both splits, and their processing on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from halfstep.train.data.pipeline import batch_augment
from halfstep.train.data.sources.seeding import generator

if TYPE_CHECKING:
    from halfstep.train.config.augment import Augmentation, Normalisation
    from halfstep.train.data.pipeline.batches import Batch, Batches
    from halfstep.train.data.sources.faults import Faults, Notice


@dataclass(frozen=True, slots=True)
class Data:
    """A data set ready for training.

    Attributes:
        classes: Names of the classes; a label is an index into this tuple.
        image_shape: Channels, height and width of the images that the model takes.
        train: Batches of the training split, in another order in each epoch.
        val: Batches of the validation split, in the order of the split.
        normalisation: Mean and standard deviation of each channel, for pixel values from 0 to 1.
        augmentation: Settings for the augmentation of whole training batches; None for none.
        seed: Determines order and augmentation.
        faults: The images that could not be read.
        notices: Remarks about the data set, which were printed as warnings.
    """

    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    train: Batches
    val: Batches
    normalisation: Normalisation
    augmentation: Augmentation | None
    seed: int
    faults: Faults
    notices: tuple[Notice, ...] = ()

    def hold(self) -> None:
        """Read the images that the device will hold; raise a UserError if they do not fit."""
        self.train.hold()
        self.val.hold()

    def preprocessing(self) -> dict[str, Any]:
        """Return the image shape and the normalisation, for pixel values from 0 to 1."""
        mean, std = self.normalisation
        return {"image_shape": list(self.image_shape), "mean": list(mean), "std": list(std)}

    def prepare(
        self,
        images: torch.Tensor,
        labels: torch.Tensor,
        *,
        device: torch.device,
        train: bool,
        epoch: int = 1,
        number: int = 0,
    ) -> Batch:
        """Copy a batch to the device, normalise it there and, in training, augment it.

        The CPU does not wait for the device.

        Args:
            images: Images of `Batches.epoch`. uint8 images are normalised; fp32 images are already
                normalised.
            labels: Labels of the images, int64, shape (N,).
            device: The device to copy to.
            train: Whether the batch is for training.
            epoch: Epoch of the batch. `epoch` and `number` determine the random numbers of erasing
                and mixing.
            number: Number of the batch within the epoch, counted from 0.

        Returns:
            The images in fp32, and the labels as int64 (N,), or in training with mixup or CutMix
            as fp32 probabilities (N, classes).
        """
        images = images.to(device, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        if images.dtype == torch.uint8:
            images = batch_augment.normalise(images, *self.normalisation)
        if not train or self.augmentation is None:
            return images, labels
        # The 1 makes this generator differ from that of the image whose index equals `number`.
        chance = generator(self.seed, epoch, number, 1)
        return batch_augment.augment(
            self.augmentation, images, labels, classes=len(self.classes), generator=chance
        )
