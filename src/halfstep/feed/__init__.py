"""Input of images for any training loop: decoding, a cache of decoded images, prefetching.

Names are imported at their first use, because torchvision is slow to import and the engine needs
only prefetching.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halfstep.feed.cache import CacheWarning, ImageCache
    from halfstep.feed.decode import read_image
    from halfstep.feed.pixels import CorruptImage
    from halfstep.feed.prefetching import prefetch

__all__ = ["CacheWarning", "CorruptImage", "ImageCache", "prefetch", "read_image"]

_LIES_IN = {
    "CacheWarning": "cache",
    "CorruptImage": "pixels",
    "ImageCache": "cache",
    "prefetch": "prefetching",
    "read_image": "decode",
}


def __getattr__(name: str) -> Any:
    if name in _LIES_IN:
        return getattr(importlib.import_module(f"halfstep.feed.{_LIES_IN[name]}"), name)
    raise AttributeError(f"module 'halfstep.feed' has no attribute {name!r}")
