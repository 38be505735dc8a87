"""How a device computes in a number format: natively, rehearsed, or not at all.

A rehearsal computes the numbers of a format on a device without units for this format. Its speed is
meaningless, so tables mark it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

from halfstep.formats import FORMATS
from halfstep.kernels.products import ON

How = Literal["native", "rehearsed", "refused"]


class Means(NamedTuple):
    """How a device computes in a format.

    Attributes:
        how: "native", "rehearsed" or "refused".
        reason: The reason for `how`, in a few words.
    """

    how: How
    reason: str


def half(format_: str, device: torch.device) -> Means:
    """Return how `device` computes in "fp16" or "bf16"."""
    if device.type == "cpu":
        return Means("rehearsed", f"{format_} tensors, fp32 kernels, each result rounded once")
    if device.type != "cuda":
        return Means("native", f"as PyTorch computes {format_} on {device.type}")
    return by_capability(format_, device, "PyTorch computes it through fp32")


def emulated(device: torch.device, reason: str) -> Means:
    """Return "rehearsed" with `reason` where halfstep has kernels for products, else "refused"."""
    return Means("rehearsed", reason) if device.type in ON else refused(device)


def refused(device: torch.device) -> Means:
    """Return "refused": there are no kernels for this type of device."""
    reason = f"no rehearsal on {device.type}, for which halfstep has no kernels; use cpu or cuda"
    return Means("refused", reason)


def by_capability(format_: str, device: torch.device, otherwise: str) -> Means:
    """Return whether a CUDA device has units for a format; without units, `otherwise` applies."""
    found = _capability(device)
    said = f"compute capability {found[0]}.{found[1]}"
    if has_units(format_, device):
        return Means("native", said)
    return Means("rehearsed", f"{said} has no {format_} units: {otherwise}")


def has_tf32(device: torch.device) -> bool:
    """Tell whether a device has TF32 tensor cores."""
    return device.type == "cuda" and has_units("tf32", device)


def has_units(format_: str, device: torch.device) -> bool:
    """Tell whether a CUDA device has units for a format, by its compute capability."""
    return _capability(device) >= FORMATS[format_].capability


def _capability(device: torch.device) -> tuple[int, int]:
    try:
        return torch.cuda.get_device_capability(device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device is {str(device)!r}, but no such GPU is here; write cpu"
        ) from error
