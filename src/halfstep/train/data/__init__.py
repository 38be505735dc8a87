"""Loads the data sets that a config can name.

To add a data set, write a file in `sources` that turns its config section into a `Source`, a
section class in `halfstep.train.config.data`, and a row in `_SOURCES`. `load` adds order, workers,
augmentation and normalisation.

The pipeline and the sources are imported at their first use: `audit` is below this package, and
proposes a config and folds without torch.
"""

from __future__ import annotations

import importlib
import os
import zlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfstep.train import kept
from halfstep.train.config.data import DigitsConfig, FilesConfig
from halfstep.train.data.sources import class_names
from halfstep.train.data.sources.faults import DataWarning, Faults, warn_of
from halfstep.train.data.sources.source import Subset, ready_images

if TYPE_CHECKING:
    import torch

    from halfstep.feed import ImageCache
    from halfstep.train.config.data import DataConfig
    from halfstep.train.data.pipeline.batches import Batches
    from halfstep.train.data.pipeline.data import Data
    from halfstep.train.data.pipeline.order import BatchShare
    from halfstep.train.data.sources.source import Source, Split

__all__ = ["Batches", "Data", "DataWarning", "load", "open_source", "usable_workers"]

_SOURCES = {
    "digits": "digits",
    "csv": "csv_list",
    "folder": "image_folder",
    "cifar10": "vision",
    "cifar100": "vision",
    "mnist": "vision",
    "fashion-mnist": "vision",
    "webdataset": "tar_shards",
    "import": "imported",
}
"""The file in `sources` that loads each kind of data set."""
_OF_PIPELINE = {"Batches": "batches", "Data": "data"}


def __getattr__(name: str) -> Any:
    if name in _OF_PIPELINE:
        file = importlib.import_module(f"halfstep.train.data.pipeline.{_OF_PIPELINE[name]}")
        return getattr(file, name)
    raise AttributeError(f"module 'halfstep.train.data' has no attribute {name!r}")


def load(
    config: DataConfig,
    *,
    batch_size: int,
    seed: int,
    device: torch.device,
    part: BatchShare | None = None,
    drop_last: bool = False,
) -> Data:
    """Return the data set that `config` names, ready for training.

    Args:
        config: The config section `data`.
        batch_size: Number of images in a batch of one process; the last batch of an epoch may have
            fewer.
        seed: Determines the order of the training images and their augmentation.
        device: The device that batches will be copied to. For a GPU, batches are loaded into
            page-locked memory.
        part: The share of each batch that this process takes; None for whole batches.
        drop_last: Whether training drops the last batch of an epoch if it is smaller than the
            others.

    Warns:
        DataWarning: About the notices of the data set.

    Raises:
        UserError: If the data cannot be loaded, or do not match the config.
    """
    from halfstep.train.data.pipeline import transforms
    from halfstep.train.data.pipeline.batches import Batches
    from halfstep.train.data.pipeline.data import Data
    from halfstep.train.data.pipeline.device_images import DeviceImages, Room
    from halfstep.train.data.pipeline.loader import Loader
    from halfstep.train.data.pipeline.order import WHOLE, Order
    from halfstep.train.data.pipeline.samples import Samples

    part = part or WHOLE
    source = kept.recall(config.model_dump_json(), lambda: open_source(config))
    notices = (*source.notices, *class_names.examine(source.classes))
    warn_of(notice.text for notice in notices)
    # The digits are in memory, already at their resolution and normalised.
    augment = None if isinstance(config, DigitsConfig) else config.augment
    faults = Faults("fatal" if isinstance(config, DigitsConfig) else config.on_error)
    normalisation = source.normalisation
    if normalisation is None:
        assert augment is not None
        normalisation = augment.normalisation(source.channels)
    side = config.resolution
    shape = (source.channels, side, side)
    cache = _cache(config) if isinstance(config, FilesConfig) else None
    room = Room(device, config.cache_images_gigabytes) if config.cache_images == "device" else None

    def batches(split: Split, *, train: bool) -> Batches:
        split = _cached(split, cache) if cache else split
        changes = augment.settings() if augment and train else None
        transform = transforms.build(augment, side, train=train) if augment else None
        if augment and changes and room:
            # The device crops and flips: at random, or what a validation would see.
            resized = changes.crop == "resized"
            transform = None if resized else transforms.build(augment, side, train=False)
        refill = train and faults.on_error == "skip"
        samples = Samples(split, shape, transform, seed, refill, ready=ready_images(split, shape))
        workers = usable_workers(config.workers)
        return Batches(
            DeviceImages(samples, changes, room, faults, workers=workers, rank=part.rank)
            if room is not None
            else Loader(samples, workers=workers, pinned=device.type == "cuda"),
            Order(
                len(split),
                batch_size * part.size,
                seed if train else None,
                part if train else replace(part, least=1),
                drop_last,
            ),
            faults=faults,
            cache=cache,
        )

    return Data(
        classes=source.classes,
        image_shape=shape,
        train=batches(source.train, train=True),
        val=batches(source.val, train=False),
        normalisation=normalisation,
        augmentation=augment.settings() if augment else None,
        seed=seed,
        faults=faults,
        notices=notices,
    )


def open_source(config: DataConfig) -> Source:
    """Return the source that `config` names: its single images, without order or augmentation."""
    file = importlib.import_module(f"halfstep.train.data.sources.{_SOURCES[config.name]}")
    source: Source = file.load(config)
    return source


def _cache(config: FilesConfig) -> ImageCache | None:
    """Return the cache of decoded images: in memory, or one file on disk for each data.root."""
    if config.cache_images not in ("ram", "disk"):
        return None
    from halfstep.feed import ImageCache

    root = Path(config.root).expanduser().absolute()
    name = f"{root.name}-{zlib.crc32(os.fsencode(root)):08x}.images"
    file = Path(config.cache_images_folder) / name if config.cache_images == "disk" else None
    return ImageCache(file, gigabytes=config.cache_images_gigabytes)


def _cached(split: Any, cache: ImageCache) -> Any:
    """Return a copy of a split of image files or shards that stores decoded images in `cache`."""
    if isinstance(split, Subset):
        return replace(split, split=_cached(split.split, cache))
    return replace(split, cache=cache)


def usable_workers(wanted: int) -> int:
    """Return the number of workers to start: `wanted`, but at most the number of usable CPUs.

    The number does not change the batches, and torch prints a long warning if it is too large.
    """
    from halfstep.train.environment import processors  # imports torch

    return min(wanted, processors())
