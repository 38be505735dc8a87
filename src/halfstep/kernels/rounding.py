"""Rounds fp32 to any narrower format, without casts, whose overflow differs between torch versions.

`round_to` divides each value by the format's spacing at that value, which is a power of two, rounds
the quotient to an integer, and multiplies by the spacing. Only the rounding to an integer changes
the value.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch

from halfstep.formats.limits import FORMATS
from halfstep.kernels.native import fused, half

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.formats.limits import Format

Rounding = Literal["nearest", "stochastic"]
Overflow = Literal["standard", "saturate"]


LARGE = 1 << 16
"""From this number of elements on, a pass over one tensor in C is faster than PyTorch's."""


def round_to(
    tensor: torch.Tensor,
    format_: str,
    *,
    rounding: Rounding = "nearest",
    overflow: Overflow = "standard",
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Round values to a number format; the result is stored in fp32.

    Args:
        tensor: fp32 or narrower tensor of any shape.
        format_: Name of the format ("fp8-e4m3").
        rounding: "nearest" rounds to the nearest value, ties to even. "stochastic" rounds up or
            down at random, so that the mean of the results is the value itself.
        overflow: Result for values beyond the largest one of the format, and for inf. "standard"
            gives inf, or NaN for fp8-e4m3, which has no inf. "saturate" gives the largest finite
            value. NaN stays NaN in both.
        generator: Source of the random numbers of stochastic rounding.

    Returns:
        An fp32 tensor of the same shape. A value that is rounded to zero keeps its sign.

    Raises:
        ValueError: If the format, rounding or overflow is unknown.
        TypeError: If the tensor has no floating-point dtype of at most 32 bits.
    """
    for what, given, allowed in (
        ("format", format_, tuple(FORMATS)),
        ("rounding", rounding, ("nearest", "stochastic")),
        ("overflow", overflow, ("standard", "saturate")),
    ):
        if given not in allowed:
            raise ValueError(f"{what} is {given!r}; allowed: {', '.join(allowed)}")
    if not tensor.is_floating_point() or tensor.dtype == torch.float64:
        raise TypeError(
            f"round_to takes fp32 or narrower tensors, not {tensor.dtype}; write tensor.float()"
        )
    value = tensor.detach().to(torch.float32)
    target = FORMATS[format_]
    rounded = _on_grid(value, target, rounding, generator)
    return _overflowed(value, rounded, target, overflow)


def round_stochastically(
    value: torch.Tensor, generator: torch.Generator, into: torch.Tensor | None = None
) -> torch.Tensor:
    """Round fp32 to bf16 at random, so that the mean of the results is the value itself.

    The bits of bf16 are the upper half of the bits of fp32. A uniform 16-bit random number is added
    to the lower half, which is then cut off. So the value is rounded away from zero with a
    probability equal to the fraction that is cut off. Values that bf16 represents, inf and NaN do
    not change.

    Args:
        value: fp32 tensor of any shape.
        generator: Source of the random bits, on the device of `value`.
        into: bf16 tensor of the same shape for the result; None creates a new tensor.

    Returns:
        A bf16 tensor of the same shape.
    """
    exact = value.detach().contiguous()
    if into is not None and not into.is_contiguous():
        return into.copy_(round_stochastically(exact, generator))
    rounded = torch.empty_like(exact, dtype=torch.bfloat16) if into is None else into
    if fused.round_stochastically(exact, rounded, generator):
        return rounded
    bits = exact.view(torch.int32)
    noise = torch.randint(
        1 << 16, bits.shape, dtype=torch.int32, device=bits.device, generator=generator
    )
    drawn = ((bits + noise) & -(1 << 16)).view(torch.float32)
    return rounded.copy_(torch.where(exact.isfinite(), drawn, exact))


def round_each(values: Sequence[torch.Tensor], into: Sequence[torch.Tensor]) -> None:
    """Round fp32 tensors of any shape to nearest, and write each into its half tensor in `into`."""
    rest: list[tuple[torch.Tensor, torch.Tensor]] = []
    for value, narrow in zip(values, into, strict=True):
        alike = value.numel() >= LARGE and value.stride() == narrow.stride()
        if alike and half.round_to_half(value, narrow.dtype, narrow=narrow):
            torch.autograd.graph.increment_version(narrow)
        else:
            rest.append((value, narrow))
    if rest:
        torch._foreach_copy_([narrow for _, narrow in rest], [value for value, _ in rest])


def round_compensated(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round fp32 to the nearest bf16 value, and round the rounding error to bf16 too.

    Args:
        value: fp32 tensor of any shape.

    Returns:
        The rounded tensor, and the rounding error as its compensation; both bf16, same shape.
    """
    exact = value.detach()
    rounded, lost = (torch.empty_like(exact, dtype=torch.bfloat16) for _ in range(2))
    if not fused.round_compensated(exact, rounded, lost):
        rounded.copy_(exact)
        lost.copy_(exact - rounded)
    return rounded, lost


def _on_grid(
    value: torch.Tensor, target: Format, rounding: Rounding, generator: torch.Generator | None
) -> torch.Tensor:
    """Round to the spacing of `target`, as if the exponent of the format had no upper limit."""
    exponent = (value.contiguous().view(torch.int32) >> 23) & 0xFF
    binade = (exponent.clamp(min=round(math.log2(target.tiny)) + 127) << 23).view(torch.float32)
    # Every factor is a power of two, so the division and the product below are exact.
    spacing = binade * target.eps
    scaled = value / spacing
    if rounding == "nearest":
        whole = scaled.round()
    else:
        whole = scaled.floor()
        draw = torch.rand(
            value.shape, dtype=torch.float64, device=value.device, generator=generator
        )
        whole += draw < (scaled - whole)
    return torch.where(value.isfinite(), torch.copysign(whole * spacing, value), value)


def _overflowed(
    value: torch.Tensor, rounded: torch.Tensor, target: Format, overflow: Overflow
) -> torch.Tensor:
    beyond = rounded.abs() > target.max
    by_standard = math.inf if target.has_inf else math.nan
    limit = target.max if overflow == "saturate" else by_standard
    return torch.where(beyond, torch.copysign(torch.full_like(value, limit), value), rounded)
