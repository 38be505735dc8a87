"""A cache of decoded images, in memory or on disk: each image is decoded only once.

One file contains all images (see `image_file`). In memory, the file has no name, so the kernel
frees it when the last process that uses it ends. Processes append to the file under a file lock,
which the kernel releases when its holder dies. This lock is held per process and does not separate
threads, so all caches of a process share one more lock for its threads.
"""

from __future__ import annotations

import fcntl
import functools
import os
import secrets
import tempfile
import threading
import warnings
from contextlib import contextmanager, suppress
from hashlib import blake2b
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfstep.errors import UserError
from halfstep.feed.decode import read_image
from halfstep.feed.image_file import ImageFile
from halfstep.versions import version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch


class CacheWarning(UserWarning):
    """The cache is full: further images are not cached. Training continues."""


class ImageCache:
    """A cache of decoded uint8 images, shared by training loops and their data loader workers.

        cache = ImageCache(gigabytes=8)                  # in memory, until the program ends
        cache = ImageCache("pets.images", gigabytes=8)   # on disk, also for later programs
        image = cache.read(path)                         # in a data set's __getitem__

    A data set that holds a cache can be sent to the workers of a `DataLoader`, with any start
    method of the workers.

    Args:
        file: Path of the cache file; an image cache there that was made for another size is
            replaced. None keeps the cache in memory.
        gigabytes: Largest size of the cache, in units of 10^9 bytes. When the cache is full,
            further images are not cached.

    Raises:
        UserError: If the file cannot be created, if it exists and is not an image cache, or if
            `gigabytes` is too small for any image.
    """

    _stopped: bool
    _warned: bool

    def __init__(self, file: str | Path | None = None, *, gigabytes: float) -> None:
        self._most_bytes = int(gigabytes * 1e9)
        path = None if file is None else Path(file).expanduser()
        try:
            images = self._in_memory() if path is None else self._on_disk(path)
        except OSError as error:
            raise UserError(
                f"the cache of images {str(path or 'in memory')!r} cannot be created: "
                f"{error.strerror or error}; write another file"
            ) from error
        except UserError:
            raise
        except ValueError as error:
            raise UserError(f"a cache of {gigabytes:g} GB holds no image: {error}") from error
        self._take(images)

    def read(
        self,
        file: Path,
        read: Callable[[Path], torch.Tensor] = read_image,
        *parts: int,
        status: os.stat_result | None = None,
    ) -> torch.Tensor:
        """Return the image in a file, from the cache if possible.

        The key of an image consists of the file's path, size and times, of `parts` and of the
        versions of the decoders. So a file that has changed is read again.

        Args:
            file: The image file.
            read: Reads the image if it is not in the cache. It must always return the same image
                for the same file and `parts`.
            parts: Numbers that identify an image within a file that contains several.
            status: Result of `os.stat` for the file; pass it if the file is already open and may
                have been replaced under its name since.

        Returns:
            The image, uint8, shape (channels, height, width), in memory that only the caller uses.

        Raises:
            OSError: If the file does not exist.
        """
        status = status or file.stat()
        known = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, *parts)
        name = f"{os.path.abspath(file)}\0{known}\0{_decoders()}"  # noqa: PTH100  (pathlib's is slow)
        key = blake2b(os.fsencode(name), digest_size=16).digest()
        image = self.get(key)
        if image is None:
            image = read(file)
            self.put(key, image)
        return image

    def get(self, key: bytes) -> torch.Tensor | None:
        """Return the image stored under a key of 16 bytes, or None."""
        try:
            return self._images.read(key)
        except OSError:
            return None

    def put(self, key: bytes, image: torch.Tensor) -> None:
        """Store a uint8 image (channels, height, width) under a 16-byte key, if there is room."""
        if self._stopped:
            return
        try:
            with _alone(self._images.descriptor):
                self._stopped = not self._images.append(key, image)
        except OSError:  # the disk is full or was removed
            self._stopped = True
            with suppress(OSError):
                self._images.call_full()

    def warn_if_full(self) -> None:
        """Warn once if the cache has no room for more images."""
        if not self._warned and (self._stopped or self._images.is_full):
            self._warned = True
            warnings.warn(
                f"the cache of images is full, with {self._images.end / 1e9:.3g} of "
                f"{self._most_bytes / 1e9:g} GB; the other images are decoded in every epoch",
                CacheWarning,
                stacklevel=2,
            )

    def _in_memory(self) -> ImageFile:
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("images")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        images = ImageFile(descriptor, self._most_bytes)
        images.begin()
        return images

    def _on_disk(self, file: Path) -> ImageFile:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists():
            there = ImageFile(os.open(file, os.O_RDWR), self._most_bytes)
            if not there.is_ours:
                raise UserError(f"{str(file)!r} is not an image cache; write another file")
            if there.fits:
                with _alone(there.descriptor):
                    there.mend()
                return there
        temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}.tmp")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        try:
            images = ImageFile(os.open(temporary, flags, 0o666), self._most_bytes)
            images.begin()
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)
        return images

    def _take(self, images: ImageFile) -> None:
        self._images = images
        self._stopped = self._warned = False

    def __getstate__(self) -> dict[str, Any]:
        return {"most_bytes": self._most_bytes, "descriptor": DupFd(self._images.descriptor)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._most_bytes = state["most_bytes"]
        self._take(ImageFile(state["descriptor"].detach(), self._most_bytes))


_threads = threading.RLock()
# Hold the lock during a fork. Otherwise another thread could hold it then, and it would stay locked
# for ever in the child process, which does not have that thread.
os.register_at_fork(
    before=_threads.acquire, after_in_parent=_threads.release, after_in_child=_threads.release
)


@contextmanager
def _alone(descriptor: int) -> Iterator[None]:
    """Keep other processes, and other threads of this one, from appending to the file."""
    with _threads:
        # lockf locks per process. flock locks per open file, which forked processes share.
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(descriptor, fcntl.LOCK_UN)


@functools.cache
def _decoders() -> tuple[str, ...]:
    """Return the versions of the decoders, which may decode a file differently after an update."""
    return tuple(version(package, "none") for package in ("torchcodec", "pillow", "torchvision"))
