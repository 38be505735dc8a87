"""What a half operator may return: the float64 result, rounded once, after fp32 accumulation."""

from __future__ import annotations

import torch

from halfstep.formats import FORMATS, format_name


def assert_rounded_once(
    result: torch.Tensor, exact: torch.Tensor, magnitude: torch.Tensor, terms: int
) -> None:
    """Check half an ulp of the half format plus the bound of fp32 accumulation.

    Args:
        result: What the operator returned.
        exact: The same from float64 arithmetic.
        magnitude: The same with every input's absolute value: the sum of |a||b|.
        terms: How many products each element sums.
    """
    format_ = FORMATS[format_name(result.dtype)]
    accumulated = (terms + 1) * 2.0**-24 * magnitude
    largest = exact.abs() + accumulated
    spacing = torch.exp2(largest.clamp(min=format_.tiny).log2().floor()) * format_.eps
    beyond = format_.max + format_.max * format_.eps / (4 - 2 * format_.eps)
    must_overflow = exact.abs() - accumulated >= beyond
    must_fit = largest < beyond
    actual = result.double()
    assert (actual[must_overflow].isinf()).all()
    assert (actual.sign() == exact.sign())[must_overflow].all()
    assert actual[must_fit].isfinite().all()
    error = (actual - exact).abs()[must_fit]
    allowed = (0.5 * spacing * (1 + 2.0**-20) + accumulated)[must_fit]
    assert (error <= allowed).all(), f"{(error / allowed).max():.3f} times what is allowed"
