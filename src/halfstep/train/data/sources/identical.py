"""What identical images are: those of identical pixels, whatever their files are called or hold.

An image that was saved again without loss, or only got other metadata, is the same one to a model.
`duplicates`, which looks before every run, compares files alone where there are many, as it may not
take the time to decode them all: what it finds is identical, and `halfstep data check` finds the
rest.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from halfstep.errors import UserError
from halfstep.train.data.sources.decode import read_image

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch


def digest(image: torch.Tensor) -> bytes:
    """Return a hash of an image's size and pixels.

    Args:
        image: Shape (channels, height, width), of any dtype.
    """
    # In the order in which decoders write them, pixels need not be copied.
    pixels = image.permute(1, 2, 0).contiguous().numpy()
    found = hashlib.blake2b(f"{pixels.dtype}{pixels.shape}".encode(), digest_size=16)
    found.update(pixels.data)
    return found.digest()


def groups(paths: Sequence[Path]) -> list[list[int]]:
    """Return the indices of the files of each image, in the order of the first of them.

    Each file is read once; one that is no image is identical to those that hold the same bytes.
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        of_image: dict[bytes, list[int]] = defaultdict(list)
        for index, key in enumerate(pool.map(_of_file, paths)):
            of_image[key].append(index)
    return list(of_image.values())


def _of_file(path: Path) -> bytes:
    try:
        return digest(read_image(path))
    except UserError:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "blake2b").digest()
