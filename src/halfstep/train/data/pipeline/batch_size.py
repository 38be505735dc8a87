"""Refuses batches for which the training set has too few images, and proposes a batch size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep import caller
from halfstep.errors import UserError
from halfstep.plurals import counted
from halfstep.train.data.pipeline.order import Order

if TYPE_CHECKING:
    from halfstep.train.config import Config

_LARGEST = 64
_BATCHES = 8
"""Smallest number of batches in an epoch with the proposed batch size, if there are 64 images."""


def propose(images: int) -> int:
    """Return a batch size for a training set: a power of two that suits a first run."""
    most = min(max(images // _BATCHES, 8), _LARGEST, images)
    return 1 << (most.bit_length() - 1)


def refuse(config: Config, images: int, processes: int = 1) -> None:
    """Refuse a config if the training set has too few images for a batch or for a step.

    An epoch would have a single step on fewer images than the config says, whatever `drop_last` is,
    so that the run would end after `epochs` steps with a model that has hardly learnt.

    Args:
        config: The config.
        images: Number of images for training, after data.train.limit.
        processes: Number of processes that train the run together.

    Raises:
        UserError: If the batches of all processes together have more than `images` images, or if
            `accumulate` is larger than the number of batches in an epoch.
    """
    is_limited = getattr(config.data.train, "limit", None) == images
    there = f"the training set has {counted(images, 'image')}"
    there += " (data.train.limit)" if is_limited else ""
    size = config.batch_size * processes
    given = f"batch_size is {config.batch_size}"
    given += f" for each of {processes} processes, {size} together" if processes > 1 else ""
    if size > images:
        most = images // processes
        instead = (
            f"write {caller.fields({'batch_size': propose(most)})}, or at most {most}"
            if most
            else "train with fewer processes"
        )
        raise UserError(f"{given}, but {there}; {instead}")
    batches = Order(images, size, seed=0, drop_last=config.drop_last).batches
    if config.accumulate > batches:
        raise UserError(
            f"accumulate is {config.accumulate} and {given}, but {there}, which are "
            f"{counted(batches, 'batch', 'batches')}; write "
            f"{caller.fields({'accumulate': batches})} or less, or a smaller batch_size"
        )
