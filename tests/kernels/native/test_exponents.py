"""Sums by exponent in C against those of plain PyTorch, bit for bit."""

from __future__ import annotations

import pytest
import torch

from halfstep.kernels.native import exponents

from .test_fused import awkward


@pytest.mark.parametrize("size", [0, 1, 3, 4, 1001])
@pytest.mark.parametrize("scale", [1e-42, 1e-3, 1e30])
def test_a_compiler_does_not_change_the_bits(
    size: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if exponents.library() is None:
        pytest.skip("no C compiler")
    values = awkward(size, scale)
    compiled = exponents.by_exponent(values)
    monkeypatch.setattr(exponents, "library", lambda: None)
    for found, expected in zip(compiled, exponents.by_exponent(values), strict=True):
        assert torch.equal(found[:-1], expected[:-1])  # the last is of inf and NaN
    assert compiled[0][-1] == (~values.isfinite()).sum()
    assert int(compiled[0].sum()) == size
