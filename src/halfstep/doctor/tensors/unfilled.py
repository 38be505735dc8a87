"""The functions and methods of torch that allocate memory and do not fill it."""

from __future__ import annotations

ALLOCATING = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
    }
)
