"""The file that an `ImageCache` is: a header, a table of entries, and pixels one after the other.

An entry is written after its pixels, with a CRC-32 of both. A process checks that when it first
reads an image, so that neither a kill nor a power failure nor a damaged disk gives wrong pixels.
Pixels are read and written by `pread` and `pwrite` and not through mapped memory, where a full disk
is a SIGBUS.
"""

from __future__ import annotations

import os
import struct
import zlib
from typing import NamedTuple

import numpy as np
import torch

MAGIC = b"hsimage1"
_HEADER = struct.Struct("<8sQQQ")  # what the file is, its most bytes, its end, whether it is full
_END_AT, _FULL_AT = 16, 24
_NUMBER = struct.Struct("<Q")
_HEAD = struct.Struct("<16sQIII?3x")  # key, start, channels, height, width, whether these come last
_CHECKSUM = struct.Struct("<I")
_ENTRY_BYTES = _HEAD.size + _CHECKSUM.size
_NO_KEY = bytes(16)
_PROBES = 64
"""Entries of the table where a key may lie: they are read at once."""
_BYTES_A_SLOT = 2**14
_LEAST_SLOTS = 1024


class Entry(NamedTuple):
    """An entry of the table, as it was read."""

    place: int
    head: bytes
    checksum: int
    start: int
    shape: tuple[int, int, int]
    interleaved: bool

    @property
    def size(self) -> int:
        """Bytes of its pixels."""
        channels, height, width = self.shape
        return channels * height * width


class ImageFile:
    """Reads and appends images. Who appends, or mends, is to be the only one that does.

    Args:
        descriptor: Of a file that is open for reading and writing; closed with this object.
        most_bytes: The most that the file may take.

    Raises:
        ValueError: If no image would have room.
    """

    def __init__(self, descriptor: int, most_bytes: int) -> None:
        self._file = os.fdopen(descriptor, "r+b", buffering=0)
        self.descriptor = descriptor
        self._most_bytes = most_bytes
        self._slots = max(_LEAST_SLOTS, most_bytes // _BYTES_A_SLOT)
        self._pixels_at = _HEADER.size + (self._slots + _PROBES) * _ENTRY_BYTES
        self._checked: dict[int, int] = {}
        if most_bytes <= self._pixels_at:
            raise ValueError(f"{most_bytes} bytes; allowed: above {self._pixels_at}")

    def begin(self) -> None:
        """Write the header and an empty table."""
        os.ftruncate(self.descriptor, self._pixels_at)
        header = _HEADER.pack(MAGIC, self._most_bytes, self._pixels_at, 0)
        os.pwrite(self.descriptor, header, 0)

    @property
    def is_ours(self) -> bool:
        """Whether it is a file of images, of whatever version and size, or empty."""
        return os.pread(self.descriptor, len(MAGIC) - 1, 0) in {b"", MAGIC[:-1]}

    @property
    def fits(self) -> bool:
        """Whether it has a whole table, of this version and for so many bytes."""
        header = os.pread(self.descriptor, _END_AT, 0)
        is_whole = os.fstat(self.descriptor).st_size >= self._pixels_at
        return is_whole and header == MAGIC + _NUMBER.pack(self._most_bytes)

    @property
    def end(self) -> int:
        """Where the next image goes."""
        return self._number(_END_AT)

    @property
    def is_full(self) -> bool:
        """Whether an image had no room."""
        return bool(self._number(_FULL_AT))

    def mend(self) -> None:
        """Let the file end where its last image does, and call it full no more.

        After a power failure the header may be older than the table, and what is appended would
        lie over images that are there. A disk that was full may have room again.
        """
        table = os.pread(self.descriptor, self._pixels_at - _HEADER.size, _HEADER.size)
        fields = {"names": ["start", "shape"], "formats": ["<u8", ("<u4", 3)]}
        layout = np.dtype({**fields, "offsets": [16, 24], "itemsize": _ENTRY_BYTES})  # type: ignore[call-overload]  # a dictionary is allowed
        entries = np.frombuffer(table, layout)
        ends = entries["start"].astype(float) + entries["shape"].astype(float).prod(1)
        end = int(ends[ends <= self._most_bytes].max(initial=0))
        os.pwrite(self.descriptor, _NUMBER.pack(max(self.end, end)) + _NUMBER.pack(0), _END_AT)

    def read(self, key: bytes) -> torch.Tensor | None:
        """Return the image under a key of 16 bytes, or None if there is no whole one."""
        entry, _ = self._find(key)
        return self._image(entry)

    def append(self, key: bytes, image: torch.Tensor) -> bool:
        """Write a uint8 image (channels, height, width) under a key, unless it is there.

        Returns:
            Whether it is there now; otherwise it has no room.
        """
        entry, free = self._find(key)
        if self._image(entry) is not None:  # another process has been faster
            return True
        interleaved = image.permute(1, 2, 0).is_contiguous()
        pixels = (image.permute(1, 2, 0) if interleaved else image.contiguous()).numpy().data
        start, place = self.end, free if entry is None else entry.place
        if place is None or start + pixels.nbytes > self._most_bytes:
            self.call_full()
            return False
        head = _HEAD.pack(key, start, *image.shape, interleaved)
        checksum = zlib.crc32(pixels, zlib.crc32(head))
        # In this order: a process that is killed between two of them leaves a gap at most.
        os.pwrite(self.descriptor, _NUMBER.pack(start + pixels.nbytes), _END_AT)
        whole = os.pwrite(self.descriptor, pixels, start) == pixels.nbytes
        if whole:
            os.pwrite(self.descriptor, head + _CHECKSUM.pack(checksum), place)
        return whole

    def call_full(self) -> None:
        """Note that an image had no room."""
        os.pwrite(self.descriptor, _NUMBER.pack(1), _FULL_AT)

    def _find(self, key: bytes) -> tuple[Entry | None, int | None]:
        """Return a key's entry, or else the place of a free one; None where there is neither."""
        first = int.from_bytes(key[:8], "little") % self._slots
        start = _HEADER.size + first * _ENTRY_BYTES
        near = os.pread(self.descriptor, _PROBES * _ENTRY_BYTES, start)
        for at in range(0, len(near), _ENTRY_BYTES):
            if near.startswith(key, at):
                head = near[at : at + _HEAD.size]
                _, begin, channels, height, width, interleaved = _HEAD.unpack(head)
                (checksum,) = _CHECKSUM.unpack_from(near, at + _HEAD.size)
                shape = (channels, height, width)
                return Entry(start + at, head, checksum, begin, shape, interleaved), None
            if near.startswith(_NO_KEY, at):
                return None, start + at
        return None, None

    def _image(self, entry: Entry | None) -> torch.Tensor | None:
        """Return the image of an entry, unless that is damaged."""
        if entry is None or entry.start + entry.size > self._most_bytes:
            return None
        pixels = np.empty(entry.size, dtype=np.uint8)
        if os.preadv(self.descriptor, [pixels.data], entry.start) != entry.size:
            return None
        if self._checked.get(entry.place) != entry.checksum:
            if zlib.crc32(pixels.data, zlib.crc32(entry.head)) != entry.checksum:
                return None
            self._checked[entry.place] = entry.checksum
        channels, height, width = entry.shape
        image = torch.from_numpy(pixels)
        if entry.interleaved:
            return image.view(height, width, channels).permute(2, 0, 1)
        return image.view(channels, height, width)

    def _number(self, at: int) -> int:
        number: int = _NUMBER.unpack(os.pread(self.descriptor, _NUMBER.size, at))[0]
        return number
