"""Image files to uint8 tensors, by the fastest path that gives the pixels of Pillow.

JPEG and PNG go by torchcodec from their bytes straight into a tensor (libjpeg-turbo writes the
interleaved pixels that antialiased uint8 resizing wants, so nothing is copied in between). Every
other format, what torchcodec's strict decoders refuse, and everything where torchcodec is not
installed goes through Pillow. Figures: `benchmarks/loader.py`.

Whatever the file holds, the result is upright (EXIF is obeyed) and RGB.
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
"""Where Pillow refuses an image, which may be a few bytes that fill the memory."""
MOST_BYTES = 2**30
_PNG = b"\x89PNG\r\n\x1a\n"

try:
    from torchcodec.decoders import decode_jpeg, decode_png
except (ImportError, OSError, RuntimeError):  # there is none here, or one for another torch
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
    """A file that holds no readable image; the message names it."""


def read_image(source: str | Path | bytes, name: str | None = None) -> torch.Tensor:
    """Read an image from a file, or from the bytes of one; errors call it `name`.

    Returns:
        The upright RGB image, uint8, shape (3, height, width). Its memory is in the order height,
        width, channel, which `transforms` and `torch.nn.functional.interpolate` are fastest on.

    Raises:
        CorruptImage: If the bytes are no image, or not a whole one.
        OSError: If the file cannot be read.
    """
    if isinstance(source, bytes):
        return _decode(bytearray(source), name or "an image")
    path = Path(source)
    _refuse_special(path, name or str(source))
    return _decode(bytearray(path.read_bytes()), name or str(source))


def _refuse_special(path: Path, name: str) -> None:
    """Refuse what is no image before it is opened: a FIFO would wait for a writer for ever."""
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
                break  # Pillow reads some that libjpeg and libpng are too strict for
            return image
    return _decode_with_pillow(bytes(content), name)


def _refuse_bomb(content: bytearray, name: str) -> None:
    """Refuse a JPEG or PNG of so many pixels that decoding it would fill the memory."""
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
    """Return height and width that the frame header of a JPEG gives (ITU-T T.81, B.2.2)."""
    place = 2
    while place + 9 < len(content):
        if content[place] != 0xFF:  # what no marker starts is passed over, as libjpeg does
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
            if upright.mode == "I" and file.format == "PPM":  # so Pillow reads 16 bits of PGM
                upright = Image.fromarray(np.asarray(upright).astype(np.uint16))
            upright = to_rgb(upright)
    except UnknownRange as error:
        raise CorruptImage(f"{name} has {error}") from error
    except UnidentifiedImageError as error:
        raise CorruptImage(f"{name} is not an image; restore it, or leave it out") from error
    except MemoryError:  # which says nothing of the file
        raise
    except Exception as error:  # what a damaged file raises depends on the format
        raise CorruptImage(
            f"{name} holds an incomplete image ({reason(error)}); restore it, or leave it out"
        ) from error
    image: torch.Tensor = functional.pil_to_tensor(upright)
    return image


class UnknownRange(ValueError):  # noqa: N818  (it names what was found)
    """An image whose range of pixel values is unknown."""


def to_rgb(image: Image.Image) -> Image.Image:
    """Return an image as RGB of 8 bits; of 16 bits the upper 8 are kept.

    Raises:
        UnknownRange: If its values are of 32 bits or floating-point numbers.
    """
    if image.mode.startswith("I;16"):  # Pillow's conversion clips at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in {"I", "F"}:
        raise UnknownRange(
            f"pixels of Pillow's mode {image.mode!r}, whose range is not known; save it with 8 or "
            "16 bits"
        )
    return image.convert("RGB")
