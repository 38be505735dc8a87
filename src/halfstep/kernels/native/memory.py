"""Memory that a training step gives back stays with the process, for the next step.

glibc's `malloc` returns large blocks to the system as soon as they are free, and a step that asks
for the same blocks again has the kernel clear each page anew: up to a fifth of its time. What is
kept is at most the most memory that the process has had at once.
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
"""Where glibc's own adaptation ends, once a program has given back blocks as large as tensors.

Versions that refuse a higher threshold for `mmap` allow this one."""
_KEPT = {_MMAP_THRESHOLD: 1 << 30, _TRIM_THRESHOLD: (1 << 31) - 1}


def freed_memory_kept() -> AbstractContextManager[None]:
    """Keep memory that is given back, for every thread of the process, until the last one leaves.

    Nothing where the C library is another than glibc.
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
            if not library.mallopt(parameter, value):  # which says by 0 that it has done nothing
                library.mallopt(parameter, _GIVEN_BACK[parameter])


_kept = _Kept()
