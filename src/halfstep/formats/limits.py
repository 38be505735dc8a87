"""The limits of the number formats, as plain data.

Everything that must know how large, how small or how fine a format is asks here. The module does
not import torch, so that printing a table of recipes stays instant; `torch_dtype` does when called.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format.

    Attributes:
        name: The word used for it in recipes and in print.
        dtype: Name of the torch dtype that stores it; tf32 has no storage of its own.
        exponent_bits: Width of the exponent field.
        mantissa_bits: Width of the stored fraction, without the hidden bit.
        max: Largest finite value.
        tiny: Smallest positive normal value.
        smallest_subnormal: Smallest positive value.
        eps: Distance from 1 to the next larger value.
        has_inf: Whether it has infinities; a format without them has a NaN in their place.
    """

    name: str
    dtype: str
    exponent_bits: int
    mantissa_bits: int
    max: float
    tiny: float
    smallest_subnormal: float
    eps: float
    has_inf: bool = True


def _ieee(name: str, dtype: str, exponent_bits: int, mantissa_bits: int) -> Format:
    """Derive the limits of a format that follows IEEE 754's rules (section 3.3)."""
    bias = 2 ** (exponent_bits - 1) - 1
    eps = 2.0**-mantissa_bits
    tiny = 2.0 ** (1 - bias)
    return Format(
        name, dtype, exponent_bits, mantissa_bits, (2 - eps) * 2.0**bias, tiny, tiny * eps, eps
    )


FORMATS: dict[str, Format] = {
    format_.name: format_
    for format_ in (
        _ieee("fp32", "float32", 8, 23),
        _ieee("tf32", "float32", 8, 10),
        _ieee("fp16", "float16", 5, 10),
        _ieee("bf16", "bfloat16", 8, 7),
        # The largest exponent holds numbers too; only its last mantissa is a NaN (OFP8, table 1).
        Format("fp8-e4m3", "float8_e4m3fn", 4, 3, 448.0, 2.0**-6, 2.0**-9, 2.0**-3, has_inf=False),
        _ieee("fp8-e5m2", "float8_e5m2", 5, 2),
    )
}


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype that stores the format `name` ("fp16" gives `torch.float16`)."""
    import torch

    dtype = getattr(torch, FORMATS[name].dtype)
    assert isinstance(dtype, torch.dtype)
    return dtype


@cache
def format_name(dtype: torch.dtype) -> str:
    """Return the format that `dtype` stores ("fp16" for `torch.float16`), or torch's own name."""
    name = str(dtype).removeprefix("torch.")
    return next((fmt.name for fmt in FORMATS.values() if fmt.dtype == name), name)
