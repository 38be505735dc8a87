"""Decodes image files to uint8 tensors, by the fastest method that gives the same pixels as Pillow.

torchcodec decodes JPEG and PNG directly into a tensor. libjpeg-turbo writes interleaved pixels,
which antialiased uint8 resizing needs, so no copy is necessary. Pillow decodes all other formats,
files that torchcodec's strict decoders refuse, and every file if torchcodec is not installed.
Timings: `benchmarks/loader.py`.

The result is always upright (the EXIF orientation is applied) and RGB.
"""

from __future__ import annotations

import io
import stat
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torchvision.transforms.v2 import functional

from halfstep.errors import UserError, reason

MOST_PIXELS = 2 * (Image.MAX_IMAGE_PIXELS or 2**26)
"""Largest number of pixels, the limit of Pillow: a small file can decode to a huge image."""
MOST_BYTES = 2**30
_PNG = b"\x89PNG\r\n\x1a\n"

try:
    from torchcodec.decoders import decode_jpeg, decode_png
except (ImportError, OSError, RuntimeError):  # torchcodec is missing, or built for another torch
    _DECODERS = {}
else:
    _DECODERS = {b"\xff\xd8\xff": decode_jpeg, _PNG: decode_png}


_SPECIAL = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class CorruptImage(UserError):  # noqa: N818  (it names what was found, as FileNotFoundError does)
    """A file contains no readable image. The message names the file."""


def read_image(source: str | Path | bytes, name: str | None = None) -> torch.Tensor:
    """Read an image from a file or from the bytes of a file; errors call it `name`.

    Returns:
        The upright RGB image, uint8, shape (3, height, width). Its memory layout is (height, width,
        channel), with which `transforms` and `torch.nn.functional.interpolate` are fastest.

    Raises:
        CorruptImage: If the bytes are not an image, or the image is incomplete or too large.
        OSError: If the file cannot be read.
    """
    if isinstance(source, bytes):
        return _decode(bytearray(source), name or "an image")
    path = Path(source)
    _refuse_special(path, name or str(source))
    return _decode(bytearray(path.read_bytes()), name or str(source))


def _refuse_special(path: Path, name: str) -> None:
    """Refuse special and huge files before they are opened: a FIFO would block for ever."""
    status = path.stat()
    for is_kind, kind in _SPECIAL:
        if is_kind(status.st_mode):
            raise CorruptImage(f"{name} is {kind}, not an image file; take it out of the set")
    if status.st_size > MOST_BYTES:
        raise CorruptImage(
            f"{name} has {status.st_size:,} bytes; allowed: up to {MOST_BYTES:,}; leave it out"
        )


def _decode(content: bytearray, name: str) -> torch.Tensor:
    if not content:
        raise CorruptImage(f"{name} is empty; restore it, or leave it out")
    for magic, decode in _DECODERS.items():
        if content.startswith(magic):
            _refuse_bomb(content, name)
            try:
                image: torch.Tensor = decode(torch.frombuffer(content, dtype=torch.uint8))
            except RuntimeError:
                break  # Pillow can read some files that torchcodec's decoders refuse
            return image
    return _decode_with_pillow(bytes(content), name)


def _refuse_bomb(content: bytearray, name: str) -> None:
    """Refuse a JPEG or PNG with so many pixels that decoding it would fill the memory."""
    if content.startswith(_PNG):
        height, width = _sides(content, 20), _sides(content, 16)
    else:
        height, width = _jpeg_sides(content)
    if height * width > MOST_PIXELS:
        raise CorruptImage(
            f"{name} has {width} x {height} pixels; allowed: up to {MOST_PIXELS:,}; leave it out"
        )


def _sides(content: bytearray, start: int, length: int = 4) -> int:
    return int.from_bytes(content[start : start + length])


def _jpeg_sides(content: bytearray) -> tuple[int, int]:
    """Return height and width in pixels from the frame header of a JPEG (ITU-T T.81, B.2.2)."""
    place = 2
    while place + 9 < len(content):
        if content[place] != 0xFF:  # skip bytes outside of segments, as libjpeg does
            place += 1
            continue
        marker = content[place + 1]
        if 0xC0 <= marker <= 0xCF and marker not in {0xC4, 0xC8, 0xCC}:
            return _sides(content, place + 5, 2), _sides(content, place + 7, 2)
        alone = marker in {0x00, 0x01, 0xFF} or 0xD0 <= marker <= 0xD9
        place += (marker != 0xFF) + 1 if alone else 2 + _sides(content, place + 2, 2)
    return 0, 0


def _decode_with_pillow(content: bytes, name: str) -> torch.Tensor:
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
    image: torch.Tensor = functional.pil_to_tensor(upright)
    return image


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
