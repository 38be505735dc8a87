"""Refuses steps of more images than the training set has, and proposes a batch size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.errors import UserError

if TYPE_CHECKING:
    from halfstep.train.config import Config

_LARGEST = 64
_STEPS = 8
"""Smallest number of steps in an epoch with the proposed batch size."""


def propose(images: int) -> int:
    """Return a batch size for a training set: a power of two that suits a first run."""
    most = min(max(images // _STEPS, 8), _LARGEST, images)
    return 1 << (most.bit_length() - 1)


def refuse(config: Config, images: int, processes: int = 1) -> None:
    """Refuse a config whose optimizer steps need more images than the training set has.

    An epoch would have one step, on fewer images than the config says, whatever `drop_last` is. So
    the run would end after `epochs` steps, with a model that has hardly learnt.

    Args:
        config: The config.
        images: Number of images for training, after data.train.limit.
        processes: Number of processes that train the run together.

    Raises:
        UserError: If the micro-batches of all processes in a step have more than `images` images.
    """
    batches = config.accumulate * processes
    wanted = config.batch_size * batches
    if wanted <= images:
        return
    step = f"batch_size is {config.batch_size}"
    if batches > 1:
        factors = [f"accumulate {config.accumulate}"] if config.accumulate > 1 else []
        factors += [f"{processes} processes"] if processes > 1 else []
        step += f", with {' and '.join(factors)} {wanted:,} images in a step"
    is_limited = getattr(config.data.train, "limit", None) == images
    there = f"{images:,} images" + (" (data.train.limit)" if is_limited else "")
    most = images // batches
    if most:
        instead = f"write --options batch_size={propose(most)}, or at most {most}"
    elif images >= processes:
        alone = propose(images // processes)
        instead = f"write --options batch_size={alone} accumulate=1"
    else:
        instead = "train with fewer processes"
    raise UserError(f"{step}, but the training set has {there}; {instead}")
