"""How a device computes in a number format: natively, rehearsed, or not at all.

A rehearsal computes the numbers of a format on a device without units for this format. Its speed is
meaningless, so tables mark it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

from halfstep.kernels.products import ON

How = Literal["native", "rehearsed", "refused"]

# The first compute capability that has units for a format (CUDA C programming guide, table 25).
_UNITS: dict[str, tuple[int, int]] = {"fp16": (5, 3), "bf16": (8, 0), "tf32": (8, 0)}


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
    return _by_capability(format_, device, "PyTorch computes it through fp32")


def tf32(device: torch.device) -> Means:
    """Return how `device` multiplies in TF32."""
    if device.type == "cuda":
        return _by_capability("tf32", device, "inputs rounded to tf32, fp32 kernels")
    if device.type in ON:
        return Means("rehearsed", "no tf32 units: inputs rounded to tf32, fp32 kernels")
    return _refused(device)


def fp16_accumulator(device: torch.device) -> Means:
    """Return how `device` sums fp16 products in fp16."""
    if device.type in ON:
        return Means("rehearsed", "sums of 16 products, each added to an fp16 accumulator")
    return _refused(device)


def float8() -> Means:
    """Return how every device multiplies in FP8."""
    return Means(
        "rehearsed",
        "fp32 kernels on fp8 values; layers whose widths are not multiples of 16 are left out",
    )


def packed(device: torch.device) -> Means:
    """Return how `device` packs tensors into a few bits per element."""
    if device.type == "cuda":
        return Means("native", "packed by Triton kernels")
    if device.type == "cpu":
        return Means("native", "packed by a C kernel, compiled when it is first needed")
    return _refused(device)


def has_tf32(device: torch.device) -> bool:
    """Tell whether a device has TF32 tensor cores."""
    return device.type == "cuda" and _capability(device) >= _UNITS["tf32"]


def _refused(device: torch.device) -> Means:
    return Means("refused", f"no rehearsal on {device.type}; use cpu or cuda")


def _by_capability(format_: str, device: torch.device, otherwise: str) -> Means:
    found = _capability(device)
    said = f"compute capability {found[0]}.{found[1]}"
    if found >= _UNITS[format_]:
        return Means("native", said)
    return Means("rehearsed", f"{said} has no {format_} units: {otherwise}")


def _capability(device: torch.device) -> tuple[int, int]:
    try:
        return torch.cuda.get_device_capability(device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device is {str(device)!r}, but no such GPU is here; write cpu"
        ) from error
