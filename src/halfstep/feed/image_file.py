"""The file of an `ImageCache`: a header, a table of entries, and the pixels of all images.

The table is a hash table with linear probing. The entry of an image is written after its pixels,
with a CRC-32 of the entry and the pixels. Each process checks the CRC-32 when it first reads an
image, so that a kill, a power failure or a damaged disk cannot result in wrong pixels. The file is
read and written with `pread` and `pwrite`, not through mapped memory: there, a full disk would
raise the signal SIGBUS.
"""

from __future__ import annotations

import os
import struct
import zlib
from typing import NamedTuple

import numpy as np
import torch

MAGIC = b"hsimage1"
_HEADER = struct.Struct("<8sQQQ")  # magic, largest size, end of the data (bytes), whether full
_END_AT, _FULL_AT = 16, 24
_NUMBER = struct.Struct("<Q")
_HEAD = struct.Struct("<16sQIII?3x")  # key, start, channels, height, width, whether interleaved
_CHECKSUM = struct.Struct("<I")
_ENTRY_BYTES = _HEAD.size + _CHECKSUM.size
_NO_KEY = bytes(16)
_PROBES = 64
"""Number of consecutive entries in which a key may be stored; they are read in one call."""
_BYTES_A_SLOT = 2**14
_LEAST_SLOTS = 1024


class Entry(NamedTuple):
    """An entry of the table.

    Attributes:
        place: Offset of the entry in the file, in bytes.
        head: The bytes of the entry before the checksum.
        checksum: CRC-32 of `head` and the pixels.
        start: Offset of the pixels in the file, in bytes.
        shape: Channels, height and width.
        interleaved: Whether the pixels are stored as (height, width, channels).
    """

    place: int
    head: bytes
    checksum: int
    start: int
    shape: tuple[int, int, int]
    interleaved: bool

    @property
    def size(self) -> int:
        """Size of the pixels in bytes."""
        channels, height, width = self.shape
        return channels * height * width


class ImageFile:
    """Reads and appends images. The caller of `append` or `mend` must hold the file's lock.

    Args:
        descriptor: Descriptor of a file open for reading and writing; closed with this object.
        most_bytes: Largest size of the file in bytes.

    Raises:
        ValueError: If `most_bytes` leaves no room for images.
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
        """Whether the file is an image cache of any version and size, or empty."""
        return os.pread(self.descriptor, len(MAGIC) - 1, 0) in {b"", MAGIC[:-1]}

    @property
    def fits(self) -> bool:
        """Whether the file has a complete table, of this version and for this `most_bytes`."""
        header = os.pread(self.descriptor, _END_AT, 0)
        is_whole = os.fstat(self.descriptor).st_size >= self._pixels_at
        return is_whole and header == MAGIC + _NUMBER.pack(self._most_bytes)

    @property
    def end(self) -> int:
        """Offset in bytes at which the next image is written."""
        return self._number(_END_AT)

    @property
    def is_full(self) -> bool:
        """Whether an image did not fit into the file."""
        return bool(self._number(_FULL_AT))

    def mend(self) -> None:
        """Correct the end in the header, and clear the mark that the file is full.

        After a power failure the header may be older than the table. Then a new image would
        overwrite existing ones. A disk that was full may have room again.
        """
        table = os.pread(self.descriptor, self._pixels_at - _HEADER.size, _HEADER.size)
        fields = {"names": ["start", "shape"], "formats": ["<u8", ("<u4", 3)]}
        layout = np.dtype({**fields, "offsets": [16, 24], "itemsize": _ENTRY_BYTES})  # type: ignore[call-overload]  # a dictionary is allowed
        entries = np.frombuffer(table, layout)
        ends = entries["start"].astype(float) + entries["shape"].astype(float).prod(1)
        end = int(ends[ends <= self._most_bytes].max(initial=0))
        os.pwrite(self.descriptor, _NUMBER.pack(max(self.end, end)) + _NUMBER.pack(0), _END_AT)

    def read(self, key: bytes) -> torch.Tensor | None:
        """Return the image stored under a 16-byte key; None if it is missing or damaged."""
        entry, _ = self._find(key)
        return self._image(entry)

    def append(self, key: bytes, image: torch.Tensor) -> bool:
        """Write a uint8 image (channels, height, width) under a key, unless the key has an image.

        Returns:
            Whether the file has the image now; False means that there is no room.
        """
        entry, free = self._find(key)
        if self._image(entry) is not None:  # another process has just written it
            return True
        interleaved = image.permute(1, 2, 0).is_contiguous()
        pixels = (image.permute(1, 2, 0) if interleaved else image.contiguous()).numpy().data
        start, place = self.end, free if entry is None else entry.place
        if place is None or start + pixels.nbytes > self._most_bytes:
            self.call_full()
            return False
        head = _HEAD.pack(key, start, *image.shape, interleaved)
        checksum = zlib.crc32(pixels, zlib.crc32(head))
        # With this order of writes, a process that is killed between them leaves at most a gap.
        os.pwrite(self.descriptor, _NUMBER.pack(start + pixels.nbytes), _END_AT)
        whole = os.pwrite(self.descriptor, pixels, start) == pixels.nbytes
        if whole:
            os.pwrite(self.descriptor, head + _CHECKSUM.pack(checksum), place)
        return whole

    def call_full(self) -> None:
        """Mark the file as full."""
        os.pwrite(self.descriptor, _NUMBER.pack(1), _FULL_AT)

    def _find(self, key: bytes) -> tuple[Entry | None, int | None]:
        """Find a key: return (entry, None), (None, offset of a free entry) or (None, None)."""
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
        """Return the image of an entry; None if there is no entry or the image is damaged."""
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
