"""Finds what is wrong with a data set before a run does: every image is read once.

Identical images are those of identical pixels, whatever their files are called or say besides.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch

from halfstep.train.data.decode import CorruptImage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from halfstep.train.data.listing import Entry

Kind = Literal["missing", "unreadable", "conflict", "shared", "duplicate", "blank"]
MEANINGS: dict[Kind, str] = {
    "missing": "the file does not exist",
    "unreadable": "the file holds no whole image",
    "conflict": "identical images with different labels",
    "shared": "identical images in training and in validation",
    "duplicate": "identical images with the same label",
    "blank": "nearly all of the image is one colour",
}
"""What can be wrong with images, in the order in which it is reported."""

BLANK_SHARE = 0.997
"""Part of an image's pixels that must look alike for it to be blank."""
BLANK_LEVELS = 12
"""Distance from the mean colour, of 255 and in every channel, within which pixels look alike."""
_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class Place:
    """Where an image is listed.

    Attributes:
        image: The path as it is listed, or what else tells it from the others.
        label: The name of its class, as far as it is known.
        split: "train", "val", or "" where nothing says.
        file: The CSV file that lists it, if one does.
        row: Its row there; the header is row 1.
    """

    image: str
    label: str
    split: str
    file: str | None
    row: int | None


@dataclass(frozen=True, slots=True)
class Look:
    """What reading one image has shown.

    Attributes:
        place: Where it is listed.
        digest: Of its size and pixels; None if it could not be read.
        problem: What is wrong with this image alone, if anything.
        detail: More about that.
    """

    place: Place
    digest: bytes | None
    problem: Kind | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is wrong with one image, or with several that are identical."""

    kind: Kind
    places: tuple[Place, ...]
    detail: str


def look(entries: Sequence[Entry], threads: int) -> Iterator[Look]:
    """Read every image, in order.

    Args:
        entries: The images.
        threads: How many are read at once.
    """
    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(entries), _AT_ONCE):
            yield from pool.map(_look_at, entries[start : start + _AT_ONCE])


def faults(looks: Iterable[Look]) -> list[Fault]:
    """Return what is wrong with the images, in the order of `MEANINGS` and then of the list."""
    found: list[Fault] = []
    identical: dict[bytes, list[Place]] = defaultdict(list)
    for each in looks:
        if each.digest is not None:
            identical[each.digest].append(each.place)
        if each.problem is not None:
            found.append(Fault(each.problem, (each.place,), each.detail))
    found += [_of_identical(places) for places in identical.values() if len(places) > 1]
    order = list(MEANINGS)
    return sorted(found, key=lambda fault: order.index(fault.kind))


def _look_at(entry: Entry) -> Look:
    place = Place(entry.image, entry.label, entry.split, entry.file, entry.row)
    try:
        image, label = entry.read()
    except FileNotFoundError as error:
        return Look(place, None, "missing", str(error.filename or error))
    except (CorruptImage, OSError) as error:
        return Look(place, None, "unreadable", str(error))
    place = replace(place, label=label)
    colour = _colour_if_blank(image)
    if colour is None:
        return Look(place, _digest(image))
    return Look(place, _digest(image), "blank", colour)


def _digest(image: torch.Tensor) -> bytes:
    # In the order in which decoders write them, pixels need not be copied.
    pixels = image.permute(1, 2, 0).contiguous().numpy()
    digest = hashlib.blake2b(f"{pixels.dtype}{pixels.shape}".encode(), digest_size=16)
    digest.update(pixels.data)
    return digest.digest()


def _colour_if_blank(image: torch.Tensor) -> str | None:
    levels = image.to(torch.float32)
    mean = levels.mean((1, 2), keepdim=True)
    # Tensors of fp32 are normalised already: their levels have no size, so only equal ones count.
    distance = BLANK_LEVELS if image.dtype == torch.uint8 else 1e-6
    share = ((levels - mean).abs() <= distance).all(0).to(torch.float32).mean().item()
    if share < BLANK_SHARE:
        return None
    colour = ", ".join(f"{level:.0f}" for level in mean.flatten().tolist())
    return f"{share:.2%} of it is the colour ({colour})"


def _of_identical(places: Sequence[Place]) -> Fault:
    labels = dict.fromkeys(place.label for place in places)
    count = f"{len(places)} times the same image"
    if len(labels) > 1:
        return Fault("conflict", tuple(places), f"{count}, labelled {' and '.join(labels)}")
    if len({place.split for place in places}) > 1:
        return Fault("shared", tuple(places), f"{count}, in both splits")
    return Fault("duplicate", tuple(places), count)
