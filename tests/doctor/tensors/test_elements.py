"""The memory of tensors, by which samples are compared."""

from __future__ import annotations

import pytest
import torch

from halfstep.doctor.tensors.elements import content


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64, torch.bool])
def test_equal_values_have_equal_content(dtype: torch.dtype) -> None:
    values = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).to(dtype)
    assert content(values) == content(values.clone())
    assert content(values) != content(values.flip(0))
    assert content(values.t()[0]) == content(values[:, 0].clone())
    assert len(content(values[0, 0].requires_grad_(dtype.is_floating_point))) == dtype.itemsize
