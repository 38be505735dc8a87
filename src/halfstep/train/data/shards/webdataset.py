"""WebDataset: images (jpg, png, webp) and labels (cls) in tar shards, on disk or over a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch.utils.data import Dataset

from halfstep.errors import UserError, closest
from halfstep.train.data.pipeline.samples import Collector, Loaded
from halfstep.train.data.shards import shards
from halfstep.train.data.sources.decode import CorruptImage, read_image
from halfstep.train.data.sources.pictures import folder, locate
from halfstep.train.data.sources.seeding import seeded

if TYPE_CHECKING:
    import torch

    from halfstep.train.config.data import WebdatasetConfig
    from halfstep.train.data.pipeline.samples import Shape, Transform
    from halfstep.train.data.shards.shard_reader import PartJob, Raw, ShardReader
    from halfstep.train.data.shards.shards import Shards

_IMAGES = ("jpg", "jpeg", "png", "webp")
_LABEL = "cls"


def find(config: WebdatasetConfig) -> tuple[Shards, Shards]:
    """Return the shards of training and of validation.

    Raises:
        UserError: If there are none, or if it is not known how many samples they have.
    """
    root = folder(config.root)
    return shards.find(config.train, root, "train"), shards.find(config.val, root, "val")


def classes(config: WebdatasetConfig) -> tuple[str, ...]:
    """Return the names of the classes, or their numbers where there are no names.

    Raises:
        UserError: If the file of names does not have as many as there are classes.
    """
    if config.names is None:
        return tuple(str(number) for number in range(config.classes))
    file = locate(config.names, Path(config.root), "data.names")
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"data.names is {config.names!r}, which cannot be read: {error}") from error
    names = tuple(line.strip() for line in lines if line.strip())
    if len(set(names)) != config.classes or len(names) != config.classes:
        raise UserError(
            f"data.names is {config.names!r}, which has {len(set(names))} different names on "
            f"{len(names)} lines, but data.classes is {config.classes}; write one line for each"
        )
    for number, name in enumerate(names):
        if name.isascii() and name.isdigit() and int(name) < len(names) and int(name) != number:
            raise UserError(
                f"data.names is {config.names!r}, which calls class {number} {name!r}, the number "
                "of another class; write names that are no numbers, or leave data.names out"
            )
    return names


class ShardSamples(Dataset[Loaded]):
    """Loads parts of batches, in one worker or in the training process.

    Args:
        names: Of the classes; a label is one of them or its number.
        shape: Of an image in the end.
        transform: What is done to an image.
        seed: Decides augmentation and the order within shards.
        reader: What gets the samples.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        shape: Shape,
        transform: Transform,
        seed: int,
        reader: ShardReader,
    ) -> None:
        self._numbers = {name: number for number, name in enumerate(names)}
        self._shape = shape
        self._transform = transform
        self._seed = seed
        self._reader = reader

    def __getitem__(self, job: PartJob) -> Loaded:
        """Load a part; images that cannot be read are left out and reported."""
        part = Collector(self._shape, self._transform)
        try:
            for place, slot in zip(job.places, job.slots, strict=True):
                number, raw = self._reader.get(job.epoch, place)
                with seeded(self._seed, job.epoch, place.shard, number, 2):
                    self._take(part, slot, raw)
        except UserError as error:
            return part.loaded(mistake=error)
        return part.loaded()

    def _take(self, part: Collector, slot: int, raw: Raw) -> None:
        name = f"{raw['__url__']}, sample {raw['__key__']}"
        part.take(slot, lambda: self._read(raw, name), lambda: name)

    def _read(self, raw: Raw, name: str) -> tuple[torch.Tensor, int]:
        kind = next((kind for kind in _IMAGES if kind in raw), None)
        if kind is None or _LABEL not in raw:
            there = ", ".join(key for key in raw if not key.startswith("__"))
            raise CorruptImage(f"{name} has {there}; allowed: {' or '.join(_IMAGES)}, and {_LABEL}")
        return read_image(raw[kind], name=name), self._label(raw[_LABEL], name)

    def _label(self, content: bytes, name: str) -> int:
        label = content.decode(errors="replace").strip()
        if label in self._numbers:
            return self._numbers[label]
        if label.isascii() and label.isdigit() and int(label) < len(self._numbers):
            return int(label)
        near = "" if label.lstrip("-").isdigit() else closest(label, self._numbers)
        raise UserError(
            f"{name} has the class {label[:40]!r}; allowed: 0 to {len(self._numbers) - 1}, or a "
            f"name of the file data.names{near}"
        )
