"""Finds the faults of a data set before a run: every image is read once.

The code that loads the data set in a run finds the faults of the data set as a whole. Images are
identical if their pixels are, whatever the names and metadata of their files.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch

from halfstep.errors import UserError
from halfstep.feed.pixels import CorruptImage
from halfstep.train import data
from halfstep.train.data.pipeline import batch_size
from halfstep.train.data.sources import class_names, csv_list, csv_rows, duplicates, row_files
from halfstep.train.data.sources.csv_list import MissingImages
from halfstep.train.data.sources.faults import DataWarning, NoticeKind, Unusable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from halfstep.train.config import Config
    from halfstep.train.config.data import ColumnsConfig
    from halfstep.train.data.audit.listing import Entry
    from halfstep.train.data.sources.faults import Notice

Kind = (
    Literal["refused", "missing", "unreadable", "conflict", "shared", "duplicate", "blank"]
    | NoticeKind
)
MEANINGS: dict[Kind, str] = {
    "refused": "training refuses it",
    "missing": "the file does not exist",
    "unreadable": "the file holds an incomplete image",
    "conflict": "identical images with different labels",
    "shared": "identical images in training and in validation",
    "duplicate": "identical images with the same label",
    "blank": "nearly all of the image is one colour",
    "format": "files in the folders of images that training does not read",
    "spelling": "names that differ only in case or Unicode form",
    "hidden": "hidden files and folders, which are ignored; this is no fault",
}
"""The kinds of faults with their descriptions, in the order in which they are reported."""

BLANK_SHARE = 0.997
"""An image is blank if at least this share of its pixels is close to its mean colour."""
BLANK_LEVELS = 12
"""Largest difference from the mean colour, in every channel and out of 255, of a close pixel."""
_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class Look:
    """The result of reading one image.

    Attributes:
        place: The entry of the image in the listing, with the label that was read.
        digest: Hash of the image's size and pixels; None if the image could not be read.
        problem: The fault of this image by itself; None if there is none.
        detail: Description of the problem.
    """

    place: Entry
    digest: bytes | None
    problem: Kind | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of one image, of several identical images, or of the data set as a whole.

    Attributes:
        kind: Kind of the fault; see `MEANINGS`.
        places: The entries of the images; empty for a fault of the data set as a whole.
        detail: Description of the fault.
    """

    kind: Kind
    places: tuple[Entry, ...]
    detail: str

    @property
    def is_harmless(self) -> bool:
        """Whether the fault needs no action, so that it does not count."""
        return self.kind == "hidden"


def whole_set(config: Config) -> list[Fault]:
    """Return the faults of a config's data set as a whole, except missing images.

    They are the reasons why a run would refuse the data set, and the notices about it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # these faults and `faults` report the same
        try:
            cpu = torch.device("cpu")
            size, seed = config.batch_size, config.seed
            loaded = data.load(config.data, batch_size=size, seed=seed, device=cpu)
        except UserError as error:
            return _of_set(error)
    try:
        batch_size.refuse(config, loaded.train.images)
    except UserError as error:
        return [*_of_set(error), *map(_noticed, loaded.notices)]
    return [_noticed(notice) for notice in loaded.notices]


def whole_list(file: Path, root: Path, columns: ColumnsConfig) -> list[Fault]:
    """Return the faults of a CSV file as a whole, as `whole_set` does."""
    try:
        rows = csv_rows.read(file, columns)
    except Unusable as error:
        return _of_set(error)
    try:
        splits = csv_list.splits(file, rows)
    except UserError as error:  # a split without rows
        return _of_set(error)
    located = [row_files.locate(name, of_split, root) for name, of_split in splits]
    notices = [notice for split in located for notice in split.notices()]
    notices += class_names.examine(csv_list.classes(located[0].rows))
    return [*_of_set(*csv_list.refusals(located, root)), *map(_noticed, notices)]


def look(entries: Sequence[Entry], threads: int) -> Iterator[Look]:
    """Read all images with `threads` threads, and yield the results in order."""
    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(entries), _AT_ONCE):
            yield from pool.map(_look_at, entries[start : start + _AT_ONCE])


def faults(looks: Iterable[Look]) -> list[Fault]:
    """Return the faults of the images, ordered as in `MEANINGS` and then as in the listing."""
    reported: list[Fault] = []
    alike: dict[bytes, list[Entry]] = defaultdict(list)
    for examined in looks:
        if examined.digest is not None:
            alike[examined.digest].append(examined.place)
        if examined.problem is not None:
            reported.append(Fault(examined.problem, (examined.place,), examined.detail))
    reported += [_of_identical(places) for places in alike.values() if len(places) > 1]
    order = list(MEANINGS)
    return sorted(reported, key=lambda fault: order.index(fault.kind))


def _look_at(place: Entry) -> Look:
    try:
        image, label = place.read()
    except FileNotFoundError as error:
        return Look(place, None, "missing", str(error.filename or error))
    except (CorruptImage, OSError) as error:
        return Look(place, None, "unreadable", str(error))
    except UserError as error:
        return Look(place, None, "refused", str(error))
    place = replace(place, label=label)
    pixels = image.permute(1, 2, 0).contiguous().numpy()
    digest, colour = duplicates.digest(pixels), _colour_if_blank(image)
    return Look(place, digest) if colour is None else Look(place, digest, "blank", colour)


def _of_set(*errors: UserError) -> list[Fault]:
    reasons = [reason for error in errors for reason in getattr(error, "reasons", [error])]
    notices = [notice for error in errors for notice in getattr(error, "notices", ())]
    return [
        *(
            Fault("refused", (), str(reason))
            for reason in reasons
            if not isinstance(reason, MissingImages)
        ),
        *map(_noticed, notices),
    ]


def _noticed(notice: Notice) -> Fault:
    return Fault(notice.kind, (), notice.text)


def _colour_if_blank(image: torch.Tensor) -> str | None:
    levels = image.to(torch.float32)
    mean = levels.mean((1, 2), keepdim=True)
    # fp32 images are already normalised with an unknown scale, so only equal pixels count.
    distance = BLANK_LEVELS if image.dtype == torch.uint8 else 1e-6
    share = ((levels - mean).abs() <= distance).all(0).to(torch.float32).mean().item()
    if share < BLANK_SHARE:
        return None
    colour = ", ".join(f"{level:.0f}" for level in mean.flatten().tolist())
    return f"{share:.2%} of it is the colour ({colour})"


def _of_identical(places: Sequence[Entry]) -> Fault:
    labels = dict.fromkeys(place.label for place in places)
    count = f"{len(places)} times the same image"
    if len(labels) > 1:
        return Fault("conflict", tuple(places), f"{count}, labelled {' and '.join(labels)}")
    if len({place.split for place in places}) > 1:
        return Fault("shared", tuple(places), f"{count}, in both splits")
    return Fault("duplicate", tuple(places), count)
