"""Summarises a tensor in a few numbers; of a sharded tensor, only the part in this process."""

from __future__ import annotations

import torch

from halfstep.doctor.record import TensorSummary
from halfstep.doctor.tensors.inexact import is_inexact, real_numbers
from halfstep.doctor.tensors.local import local
from halfstep.formats import format_name


def summary(tensor: torch.Tensor, name: str = "") -> TensorSummary:
    """Return a summary of a tensor; waits for the device.

    A complex tensor is summarised by its real and imaginary parts, a sparse one by its values.
    """
    tensor = local(tensor)
    shape = tuple(tensor.shape)
    form = format_name(tensor.dtype)
    if not is_inexact(tensor) or tensor.numel() == 0:
        zeros = 0 if tensor.numel() == 0 or tensor.is_sparse else int((tensor == 0).sum())
        return TensorSummary(form, shape, None, None, zeros, 0, 0, None, name)
    values = real_numbers(tensor.detach()).double()
    finite = values[values.isfinite()]
    sizes = finite.abs()
    nonzero = sizes[sizes > 0]
    return TensorSummary(
        format=form,
        shape=shape,
        largest=sizes.max().item() if sizes.numel() else None,
        smallest=nonzero.min().item() if nonzero.numel() else None,
        zeros=int((values == 0).sum()),
        infs=int(values.isinf().sum()),
        nans=int(values.isnan().sum()),
        lowest=finite.min().item() if finite.numel() else None,
        name=name,
        negative_infs=int((values == -torch.inf).sum()),
    )


def norm_dtype(tensor: torch.Tensor) -> torch.dtype | None:
    """Return the dtype in which to compute a tensor's norm: fp32, or None if its own is wider."""
    narrow = tensor.dtype in (torch.float16, torch.bfloat16, torch.float32)
    return torch.float32 if narrow else None


def is_finite(tensor: torch.Tensor) -> bool:
    """Return whether a tensor holds only finite numbers, or none; waits for the device."""
    tensor = local(tensor)
    if not is_inexact(tensor) or tensor.numel() == 0 or tensor.is_meta:
        return True
    tensor = real_numbers(tensor)
    # A sum takes a tenth of the time of isfinite().all(), and is finite only if all elements are.
    total = tensor.detach().sum(dtype=torch.float32)
    return bool(total.isfinite()) or bool(tensor.detach().isfinite().all())
