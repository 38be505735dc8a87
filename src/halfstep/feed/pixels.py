"""Decodes image files to NumPy arrays with Pillow, in processes that need no torch.

`decode` decodes to tensors, by faster methods, and falls back on this file. The result is always
upright (the EXIF orientation is applied) and RGB.
"""

from __future__ import annotations

import io
import stat
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from halfstep.errors import UserError, reason

MOST_BYTES = 2**30
_SPECIAL = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class CorruptImage(UserError):  # noqa: N818  (it names what was found, as FileNotFoundError does)
    """A file contains no readable image. The message names the file."""


def read(path: str | Path) -> np.ndarray:
    """Read an image from a file; errors call it by its path.

    Returns:
        The upright RGB image, uint8, shape (height, width, 3).

    Raises:
        CorruptImage: If the file is not an image, or the image is incomplete or too large.
        OSError: If the file cannot be read.
    """
    return decode(content_of(Path(path), str(path)), str(path))


def content_of(path: Path, name: str) -> bytes:
    """Return the bytes of an image file; special and huge files are refused.

    They are refused before they are opened: a FIFO would block for ever.
    """
    status = path.stat()
    for is_kind, kind in _SPECIAL:
        if is_kind(status.st_mode):
            raise CorruptImage(f"{name} is {kind}, not an image file; take it out of the set")
    if status.st_size > MOST_BYTES:
        raise CorruptImage(
            f"{name} has {status.st_size:,} bytes; allowed: up to {MOST_BYTES:,}; leave it out"
        )
    return path.read_bytes()


def decode(content: bytes, name: str) -> np.ndarray:
    """Decode the bytes of an image file, which errors call `name`; see `read`."""
    if not content:
        raise CorruptImage(f"{name} is empty; restore it, or leave it out")
    try:
        with Image.open(io.BytesIO(content)) as file:
            upright = ImageOps.exif_transpose(file)
            if upright.mode == "I" and file.format == "PPM":  # Pillow's mode for 16-bit PGM
                upright = Image.fromarray(np.asarray(upright).astype(np.uint16))
            upright = to_rgb(upright)
    except UnknownRange as error:
        raise CorruptImage(f"{name} has {error}") from error
    except UnidentifiedImageError as error:
        raise CorruptImage(
            f"{name} is not an image of a format that is read; restore it, convert it to PNG or "
            "JPEG, or leave it out"
        ) from error
    except MemoryError:  # does not mean that the file is damaged
        raise
    except Exception as error:  # the exception for a damaged file depends on the image format
        raise CorruptImage(
            f"{name} holds an incomplete image ({reason(error)}); restore it, or leave it out"
        ) from error
    return np.array(upright)


class UnknownRange(ValueError):  # noqa: N818  (it names what was found)
    """The range of an image's pixel values is unknown."""


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert an image to 8-bit RGB; 16-bit values keep their upper 8 bits.

    Raises:
        UnknownRange: If the pixel values are 32-bit integers or floating-point numbers.
    """
    if image.mode.startswith("I;16"):  # Pillow's conversion clips at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in {"I", "F"}:
        raise UnknownRange(
            f"pixels of Pillow's mode {image.mode!r}, whose range is not known; save it with 8 or "
            "16 bits"
        )
    return image.convert("RGB")
