"""What the trainer needs to know about a data set, and the loaders over it.

The order of the training images comes from a generator of its own, so that every recipe of one seed
sees the same batches, whatever else draws random numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader, TensorDataset


@dataclass(frozen=True, slots=True)
class Splits:
    """A data set, split.

    Attributes:
        train: Images (N, channels, height, width) in fp32, normalised, and labels (N,) in int64.
        val: The same, of images that training never sees.
        classes: Names of the classes; a label is an index into it.
    """

    train: TensorDataset
    val: TensorDataset
    classes: tuple[str, ...]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        channels, height, width = self.train.tensors[0].shape[1:]
        return channels, height, width


Batches = DataLoader[tuple[torch.Tensor, ...]]


def loaders(
    splits: Splits, *, batch_size: int, seed: int, workers: int, pinned: bool
) -> tuple[Batches, Batches]:
    """Return the loaders of the training split, shuffled anew each epoch, and the validation split.

    Args:
        splits: The data.
        batch_size: Images in a batch; the last one of an epoch may be smaller.
        seed: Decides the order of the training images of every epoch.
        workers: Processes that load; 0 loads in this one.
        pinned: Whether batches lie in page-locked memory, for copies to a GPU.
    """
    train = DataLoader(
        splits.train,
        batch_size,
        shuffle=True,
        generator=torch.Generator().manual_seed(seed),
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=pinned,
        # BatchNorm has no statistics of a single value, so a last batch of one image is left out.
        drop_last=len(splits.train) > batch_size and len(splits.train) % batch_size == 1,
    )
    # A generator of its own, since a loader without one draws from torch's at every epoch.
    val = DataLoader(
        splits.val,
        batch_size,
        generator=torch.Generator().manual_seed(seed),
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=pinned,
    )
    return train, val
