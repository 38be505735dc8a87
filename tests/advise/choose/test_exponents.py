"""Histograms of exponents, against what a cast of the same values does."""

from __future__ import annotations

import math

import pytest
import torch

from halfstep.advise.choose.exponents import LOWEST, Exponents
from halfstep.formats import FORMATS


def test_values_are_counted_by_binade() -> None:
    values = torch.tensor([1.0, 1.5, -2.0, 3.99, 0.0, -0.0, math.inf, math.nan, 2.0**-149])
    found = Exponents.of(values)
    assert (int(found.counts[-LOWEST]), int(found.counts[1 - LOWEST])) == (2, 2)
    assert (int(found.counts[0]), found.zeros, found.nonfinite) == (1, 2, 2)
    assert found.highest == 1


@pytest.mark.parametrize(("largest", "bits"), [(60000.0, 0), (70000.0, -1), (1.0, 15)])
def test_headroom_is_counted_in_bits(largest: float, bits: int) -> None:
    assert Exponents.of(torch.tensor([largest])).headroom(FORMATS["fp16"]) == bits


@pytest.mark.parametrize("size", [1.0, 1e-5, 1e-7, 1e-9])
@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_what_rounding_changes_is_what_a_cast_changes(size: float, scale: float) -> None:
    values = torch.randn(20000, generator=torch.Generator().manual_seed(0)) * size
    cast = (values * scale).half().double() / scale
    lost = float((cast - values.double()).square().sum() / values.double().square().sum())
    expected = Exponents.of(values).rounded_away(FORMATS["fp16"], scale)
    # Between half of the smallest subnormal and itself a value moves by more than it is spread.
    assert expected == pytest.approx(lost, rel=0.35)


def test_histograms_add_up() -> None:
    values = torch.randn(100)
    whole = Exponents.of(values)
    parts = Exponents.of(values[:40]) + Exponents.of(values[40:])
    assert torch.equal(whole.counts, parts.counts)
    assert torch.allclose(whole.squares, parts.squares)


def test_squares_are_summed_by_binade_down_to_the_smallest_subnormal() -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.exp2(torch.randint(-160, 127, (5000,), generator=generator).double())
    values = (torch.randn(5000, generator=generator).double() * sizes).float()
    values = values[values.isfinite()]
    found = Exponents.of(values)
    wanted = [0.0] * len(found.squares)
    for value in values.double().tolist():
        if value:
            wanted[math.frexp(value)[1] - 1 - LOWEST] += value**2
    assert found.squares.tolist() == pytest.approx(wanted)
    assert int(found.counts.sum()) + found.zeros == len(values)
