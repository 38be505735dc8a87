"""A data set ready for training: batches of both splits, and what is done to them on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from halfstep.train.data.pipeline import batch_augment
from halfstep.train.data.sources.seeding import generator

if TYPE_CHECKING:
    from halfstep.train.config.augment import Augmentation, Normalisation
    from halfstep.train.data.pipeline.batches import Batch, Batches
    from halfstep.train.data.sources.faults import Faults


@dataclass(frozen=True, slots=True)
class Data:
    """What a run learns from.

    Attributes:
        classes: Names of the classes; a label is an index into it.
        image_shape: Channels, height and width of the images that the model sees.
        train: Batches of the training split, in another order each epoch.
        val: Batches of the validation split, in its own order.
        normalisation: Mean and standard deviation of each channel, of pixels from 0 to 1.
        augmentation: What happens to whole training batches; None for nothing.
        seed: Decides order and augmentation.
        faults: The images that could not be read.
    """

    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    train: Batches
    val: Batches
    normalisation: Normalisation
    augmentation: Augmentation | None
    seed: int
    faults: Faults

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
        """Bring a batch to the device, normalise it there and, in training, augment it.

        Nothing here waits for the device.

        Args:
            images: As `Batches.epoch` yields them: uint8 images are normalised, fp32 ones are so
                already.
            labels: Theirs, int64, shape (N,).
            device: Where to.
            train: Whether the batch is to be learned from.
            epoch: Its epoch; with `number` it decides what is random about erasing and mixing.
            number: Its number within the epoch, counted from 0.

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
        # The last number tells this generator from the one of an image of the same index.
        chance = generator(self.seed, epoch, number, 1)
        return batch_augment.augment(
            self.augmentation, images, labels, classes=len(self.classes), generator=chance
        )
