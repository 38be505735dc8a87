"""The limits of the formats, against torch's own."""

from __future__ import annotations

import pytest
import torch

from halfstep.formats import FORMATS, format_name, torch_dtype


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16"])
def test_limits_are_torchs(name: str) -> None:
    format_, limits = FORMATS[name], torch.finfo(torch_dtype(name))
    assert format_.max == limits.max
    assert format_.tiny == limits.tiny
    assert format_.eps == limits.eps
    assert format_.smallest_subnormal == limits.smallest_normal * limits.eps
    smallest = torch.tensor(format_.smallest_subnormal, dtype=torch_dtype(name))
    assert float(smallest) > 0 == float(smallest / 2)
    assert 1 + format_.exponent_bits + format_.mantissa_bits == limits.bits
    assert format_name(torch_dtype(name)) == name


def test_tf32_has_the_range_of_fp32_and_the_fraction_of_fp16() -> None:
    assert FORMATS["tf32"].tiny == FORMATS["fp32"].tiny
    assert FORMATS["tf32"].eps == FORMATS["fp16"].eps
    assert torch_dtype("tf32") == torch.float32


def test_other_dtypes_keep_the_name_that_torch_gives_them() -> None:
    assert format_name(torch.int64) == "int64"
