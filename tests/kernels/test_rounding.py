"""`round_to` against torch's casts and ml_dtypes, bit for bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from halfstep.formats import FORMATS, round_to
from halfstep.kernels.rounding import LARGE, round_each

TORCH = {"fp16": torch.float16, "bf16": torch.bfloat16}
NUMPY = {
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "fp8-e4m3": ml_dtypes.float8_e4m3fn,
    "fp8-e5m2": ml_dtypes.float8_e5m2,
}


def by_ml_dtypes(values, name):
    with np.errstate(all="ignore"):
        return torch.from_numpy(values.numpy().astype(NUMPY[name]).astype(np.float32))


def assert_same_bits(left, right):
    same = (left.view(torch.int32) == right.view(torch.int32)) | (left.isnan() & right.isnan())
    assert same.all(), f"{left[~same][:3]} is not {right[~same][:3]}"


def patterns(name):
    """Every value of a format."""
    if name in TORCH:
        return torch.arange(-(2**15), 2**15, dtype=torch.int16).view(TORCH[name]).float()
    octets = np.arange(256, dtype=np.uint8).view(NUMPY[name])
    return torch.from_numpy(octets.astype(np.float32))


def with_neighbours(values):
    """The fp32 values next to each, on both sides."""
    infinity = torch.full_like(values, torch.inf)
    return torch.cat([values, values.nextafter(infinity), values.nextafter(-infinity)])


@pytest.mark.parametrize("name", NUMPY)
def test_ties_and_their_neighbourhoods_are_exact(name):
    finite = patterns(name)
    finite = finite[finite.isfinite()].unique()
    edge = torch.tensor([FORMATS[name].max])
    beyond = edge * (1 + FORMATS[name].eps / 2)
    steps = torch.cat([-beyond, finite, beyond]).double()
    ties = ((steps[1:] + steps[:-1]) / 2).float()
    values = with_neighbours(torch.cat([finite, ties, edge, beyond, -beyond]))
    assert_same_bits(round_to(values, name), by_ml_dtypes(values, name))
    if name in TORCH:
        assert_same_bits(round_to(values, name), values.to(TORCH[name]).float())


@pytest.mark.parametrize("name", NUMPY)
def test_every_pattern_of_a_format_is_kept(name):
    values = patterns(name)
    assert_same_bits(round_to(values, name), values)


@pytest.mark.parametrize("name", NUMPY)
def test_random_bits_are_exact(name):
    generator = torch.Generator().manual_seed(11)
    bits = torch.randint(-(2**31), 2**31, (1_000_000,), generator=generator)
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 2.0**-149, -(2.0**-149)])
    values = torch.cat([bits.to(torch.int32).view(torch.float32), special])
    assert_same_bits(round_to(values, name), by_ml_dtypes(values, name))


def test_tf32_keeps_ten_bits_of_fraction():
    values = torch.randn(10_000, generator=torch.Generator().manual_seed(1))
    bits = values.view(torch.int32)
    # To nearest even: half of the cut part, less one where the kept part is even.
    expected = ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)
    assert_same_bits(round_to(values, "tf32"), expected)


@pytest.mark.parametrize("name", NUMPY)
def test_saturating_gives_the_largest_value_and_keeps_nan(name):
    largest = FORMATS[name].max
    # The largest fp32 number stands in for "too large" where the format has fp32's range.
    huge = torch.finfo(torch.float32).max
    given = torch.tensor([torch.inf, -torch.inf, huge, -huge, largest, 1.0, torch.nan])
    rounded = round_to(given, name, overflow="saturate")
    expected = torch.tensor([largest, -largest, largest, -largest, largest, 1.0, torch.nan])
    assert_same_bits(rounded, expected)


def test_overflow_by_the_standard_is_nan_where_there_is_no_inf():
    huge = torch.tensor([1e6, -1e6, torch.inf])
    assert round_to(huge, "fp8-e4m3").isnan().all()
    assert round_to(huge, "fp8-e5m2").tolist() == [torch.inf, -torch.inf, torch.inf]


@pytest.mark.parametrize("name", [*NUMPY, "tf32"])
def test_stochastic_rounding_expects_the_value_itself(name):
    target = FORMATS[name]
    for start, spacing in ((1.0, target.eps), (target.tiny, target.smallest_subnormal)):
        value = torch.full((40_000,), start + 0.25 * spacing)
        rounded = round_to(
            value, name, rounding="stochastic", generator=torch.Generator().manual_seed(2)
        )
        assert set(rounded.tolist()) == {start, start + spacing}
        share = (rounded > start).double().mean().item()
        assert abs(share - 0.25) < 5 * (0.25 * 0.75 / 40_000) ** 0.5


@pytest.mark.parametrize("name", NUMPY)
def test_stochastic_rounding_keeps_what_the_format_holds(name):
    values = patterns(name)
    assert_same_bits(round_to(values, name, rounding="stochastic"), values)


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        ({"format_": "fp12"}, "fp8-e4m3"),
        ({"rounding": "up"}, "stochastic"),
        ({"overflow": "wrap"}, "saturate"),
    ],
)
def test_unknown_choices_are_refused_with_what_is_allowed(change, allowed):
    with pytest.raises(ValueError, match=allowed):
        round_to(torch.ones(1), **({"format_": "fp16"} | change))


def test_float64_is_refused():
    with pytest.raises(TypeError, match="float64"):
        round_to(torch.ones(1, dtype=torch.float64), "fp16")


@pytest.mark.parametrize("dtype", TORCH.values())
def test_each_tensor_of_a_list_is_rounded_into_its_counterpart(dtype):
    shapes = ((3,), (LARGE + 5,), (8, 64, 16, 16), (2, LARGE))
    values = [torch.randn(shape) for shape in shapes]
    values[2] = values[2].to(memory_format=torch.channels_last)
    into = [torch.zeros_like(value, dtype=dtype) for value in values]
    into[3] = torch.zeros(LARGE, 2, dtype=dtype).t()  # other strides
    round_each(values, into)
    for value, narrow in zip(values, into, strict=True):
        assert torch.equal(narrow, value.to(dtype))
        assert narrow._version == 1
