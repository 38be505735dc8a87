"""Makes the process keep the memory that a training step frees, for the next step.

glibc's `malloc` returns large blocks to the operating system as soon as they are freed. If the next
step allocates the same blocks again, the operating system has to clear every page, which takes up
to a fifth of the step's time. The process keeps at most as much memory as it had at its peak.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import TYPE_CHECKING

from halfstep.kernels.registration import Counted

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

# From glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_GIVEN_BACK = {_MMAP_THRESHOLD: 1 << 25, _TRIM_THRESHOLD: 1 << 26}
"""The thresholds that glibc itself sets at most, after a program has freed large blocks.

glibc versions that refuse a higher threshold for `mmap` accept this one."""
_KEPT = {_MMAP_THRESHOLD: 1 << 30, _TRIM_THRESHOLD: (1 << 31) - 1}


def freed_memory_kept() -> AbstractContextManager[None]:
    """Return a context in which the process keeps freed memory, until the last such context ends.

    Without glibc, the context does nothing.
    """
    return _kept.held()


@cache
def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None


class _Kept(Counted):
    def _put_in_place(self) -> None:
        _set(_KEPT)

    def _give_back(self) -> None:
        _set(_GIVEN_BACK)
        library = _glibc()
        if library is not None:
            library.malloc_trim(0)


def _set(thresholds: dict[int, int]) -> None:
    library = _glibc()
    if library is not None:
        for parameter, value in thresholds.items():
            if not library.mallopt(parameter, value):  # it returns 0 if it refuses the value
                library.mallopt(parameter, _GIVEN_BACK[parameter])


_kept = _Kept()
