"""Max pooling of half CPU tensors in `channels_last`, several times as fast as PyTorch's own.

PyTorch's kernel for contiguous images compares one number at a time, in fp32 and in half. Its
kernel for `channels_last` compares many channels at once. Both select the same element, also with
NaN, so values, indices and strides are the same as with the contiguous kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.formats.dtypes import HALVES
from halfstep.kernels.registration import Overrides

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from halfstep.kernels.registration import Kernel

FEWEST_CHANNELS = 16
"""With fewer channels, the two changes of layout cost more time than they save."""


def fast_half_pooling() -> AbstractContextManager[None]:
    """Return a context that registers this kernel for half CPU images, in every thread."""
    return _overrides.held()


def _max_pool2d(
    original: Callable[..., Any], images: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    pays = (
        images.dtype in HALVES
        and images.ndim == 4
        and images.shape[1] >= FEWEST_CHANNELS
        and images.is_contiguous()
    )
    if not pays:
        return original(images, *args, **kwargs)
    last = images.contiguous(memory_format=torch.channels_last)
    values, indices = original(last, *args, **kwargs)
    return values.contiguous(), indices.contiguous()


def _kernels() -> dict[str, Kernel | None]:
    return {"max_pool2d_with_indices": _max_pool2d}


_overrides = Overrides("CPU", _kernels)
