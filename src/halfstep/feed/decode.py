"""Decodes image files to uint8 tensors, by the fastest method that gives the same pixels as Pillow.

torchcodec decodes JPEG and PNG directly into a tensor. libjpeg-turbo writes interleaved pixels,
which antialiased uint8 resizing needs, so no copy is necessary. Pillow decodes all other formats,
files that torchcodec's strict decoders refuse, and every file if torchcodec is not installed.
Timings: `benchmarks/loader.py`.

The result is always upright (the EXIF orientation is applied) and RGB.
"""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image

from halfstep.feed import pixels
from halfstep.feed.pixels import CorruptImage

MOST_PIXELS = 2 * (Image.MAX_IMAGE_PIXELS or 2**26)
"""Largest number of pixels, the limit of Pillow: a small file can decode to a huge image."""
_PNG = b"\x89PNG\r\n\x1a\n"

try:
    from torchcodec.decoders import decode_jpeg, decode_png
except (ImportError, OSError, RuntimeError):  # torchcodec is missing, or built for another torch
    _DECODERS = {}
else:
    _DECODERS = {b"\xff\xd8\xff": decode_jpeg, _PNG: decode_png}


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
    content = pixels.content_of(Path(source), name or str(source))
    return _decode(bytearray(content), name or str(source))


def _decode(content: bytearray, name: str) -> torch.Tensor:
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
    return torch.from_numpy(pixels.decode(content, name)).permute(2, 0, 1)
