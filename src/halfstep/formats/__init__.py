"""The number formats, their limits, and rounding to them.

`round_to`, which needs torch, is imported at its first use, so that listing the recipes stays fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfstep.formats.limits import FORMATS, Format, format_name, torch_dtype

if TYPE_CHECKING:
    from halfstep.kernels.rounding import round_to

__all__ = ["FORMATS", "Format", "format_name", "round_to", "torch_dtype"]


def __getattr__(name: str) -> Any:
    if name == "round_to":
        from halfstep.kernels.rounding import round_to

        return round_to
    raise AttributeError(f"module 'halfstep.formats' has no attribute {name!r}")
