"""What several rules suggest."""

from __future__ import annotations

_POWERS = {"aten.rsqrt": "1e-3", "aten.reciprocal": "1e-2"}


def fp16_eps(op: str) -> str:
    """Return an eps for the argument of an operator, as text.

    With it, both the operator and its derivative are finite in fp16 where the argument is 0. The
    derivative of `rsqrt` raises the eps to the power of -1.5, that of `reciprocal` to -2.

    Args:
        op: The ATen operator of the forward pass.
    """
    return _POWERS.get(op, "1e-4")
