"""The limits of the number formats, as plain data.

All code that needs the range or the precision of a format reads it here. Importing this module does
not import torch, so that listing the recipes stays fast; calling `torch_dtype` does.
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
        name: The name of the format in recipes and in output.
        dtype: Name of the torch dtype that stores the format. tf32 values are stored as float32.
        exponent_bits: Width of the exponent field.
        mantissa_bits: Width of the stored fraction, without the implicit leading bit.
        max: Largest finite value.
        tiny: Smallest positive normal value.
        smallest_subnormal: Smallest positive value.
        eps: Distance from 1 to the next larger value.
        has_inf: Whether the format has infinities. A format without them has NaN instead.
        capability: The first CUDA compute capability with units for the format (CUDA C programming
            guide, table 25).
        rate: The column of the GPU table with the speed of products in the format. Formats that
            run at the same speed share a column, such as those of FP8.
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
    capability: tuple[int, int] = (0, 0)
    rate: str = "fp32"

    @property
    def bytes(self) -> float:
        """Bytes of an element in memory."""
        return int("".join(filter(str.isdigit, self.dtype.partition("_")[0]))) / 8

    def rounds_to_zero(self, value: float) -> bool:
        """Tell whether a number other than 0 is 0 in this format, rounded to nearest."""
        return 0 < abs(value) <= self.smallest_subnormal / 2


def _ieee(
    name: str,
    dtype: str,
    exponent_bits: int,
    mantissa_bits: int,
    *,
    capability: tuple[int, int] = (0, 0),
    rate: str = "fp32",
) -> Format:
    """Compute the limits of a format that follows IEEE 754 (section 3.3)."""
    bias = 2 ** (exponent_bits - 1) - 1
    eps = 2.0**-mantissa_bits
    tiny = 2.0 ** (1 - bias)
    return Format(
        name,
        dtype,
        exponent_bits,
        mantissa_bits,
        max=(2 - eps) * 2.0**bias,
        tiny=tiny,
        smallest_subnormal=tiny * eps,
        eps=eps,
        capability=capability,
        rate=rate,
    )


FORMATS: dict[str, Format] = {
    format_.name: format_
    for format_ in (
        _ieee("fp32", "float32", 8, 23),
        _ieee("tf32", "float32", 8, 10, capability=(8, 0), rate="tf32"),
        _ieee("fp16", "float16", 5, 10, capability=(5, 3), rate="fp16"),
        _ieee("bf16", "bfloat16", 8, 7, capability=(8, 0), rate="fp16"),
        # Not IEEE: the largest exponent encodes finite numbers too, except that the mantissa of all
        # ones is NaN (OFP8, table 1).
        Format(
            "fp8-e4m3",
            "float8_e4m3fn",
            exponent_bits=4,
            mantissa_bits=3,
            max=448.0,
            tiny=2.0**-6,
            smallest_subnormal=2.0**-9,
            eps=2.0**-3,
            has_inf=False,
            capability=(8, 9),
            rate="fp8",
        ),
        _ieee("fp8-e5m2", "float8_e5m2", 5, 2, capability=(8, 9), rate="fp8"),
        # Neither inf nor NaN (OCP Microscaling Formats v1.0, section 5.3.3).
        Format(
            "fp4-e2m1",
            "float4_e2m1fn_x2",
            exponent_bits=2,
            mantissa_bits=1,
            max=6.0,
            tiny=1.0,
            smallest_subnormal=0.5,
            eps=0.5,
            has_inf=False,
            capability=(10, 0),
            rate="fp4",
        ),
    )
}

HALVES = frozenset({"fp16", "bf16"})
"""The formats of half precision; `dtypes.HALVES` has their torch dtypes."""


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype that stores the format `name` ("fp16" gives `torch.float16`)."""
    import torch

    dtype = getattr(torch, FORMATS[name].dtype)
    assert isinstance(dtype, torch.dtype)
    return dtype


@cache
def format_name(dtype: torch.dtype) -> str:
    """Return the format that `dtype` stores ("fp16" for `torch.float16`), or else torch's name."""
    name = str(dtype).removeprefix("torch.")
    return next((fmt.name for fmt in FORMATS.values() if fmt.dtype == name), name)
