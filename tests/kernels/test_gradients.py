"""What is done to gradients, one verb each, in every format."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from halfstep.kernels.gradients import check, coalesce, dense, norms, put, unscale, widen
from halfstep.kernels.native.half import MANY


def half_layer() -> nn.Linear:
    return nn.Linear(2, 2, bias=False).half()


def test_a_gradient_in_any_format_can_be_put_beside_a_parameter() -> None:
    layer = half_layer()
    for dtype in (torch.float32, torch.float16, torch.float64):
        put(layer.weight, torch.ones(2, 2, dtype=dtype))
        assert layer.weight.grad.dtype == dtype


def test_widening_leaves_fp64_and_what_has_no_gradient_alone() -> None:
    params = [nn.Parameter(torch.ones(2, dtype=d)) for d in (torch.bfloat16, torch.float64)]
    for param in params:
        param.grad = torch.ones_like(param)
    without = nn.Parameter(torch.ones(2).half())
    widen([*params, without])
    assert [param.grad.dtype for param in params] == [torch.float32, torch.float64]
    assert without.grad is None


def test_values_of_a_sparse_gradient_are_added_up_before_they_are_looked_at() -> None:
    embedding = nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1, 1, 3])).sum().backward()
    with pytest.raises(RuntimeError, match="coalesce"):
        dense(embedding.parameters())
    coalesce(embedding.parameters())
    (values,) = dense(embedding.parameters())
    assert values.tolist() == [[2.0, 2.0], [1.0, 1.0]]
    values.mul_(2)
    assert embedding.weight.grad.to_dense()[1].tolist() == [4.0, 4.0], "they are the gradient's own"


def test_unscaling_looks_for_what_is_not_finite_before_it_multiplies() -> None:
    for bad in (float("inf"), float("nan")):
        found = torch.zeros(())
        grads = [torch.tensor([1.0, 3.0]), torch.tensor([bad]), torch.ones(1).double()]
        unscale(grads, torch.tensor(2.0), found)
        assert float(found) == 1
        assert grads[0].tolist() == [2.0, 6.0]
        assert grads[2].tolist() == [2.0]
    found = torch.zeros(())
    unscale([torch.ones(2)], torch.tensor(float("inf")), found)
    assert float(found) == 0


def test_norms_of_half_gradients_are_taken_in_fp32() -> None:
    grads = [torch.full((10_000,), 948.68, dtype=dtype) for dtype in (torch.float16, torch.float64)]
    found = norms(grads)
    assert found.tolist() == pytest.approx([94_868, 94_868], rel=2e-3)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64]
)
def test_checking_finds_one_element_and_leaves_all_values(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for bad in (None, math.inf, -math.inf, math.nan):
        grads = [torch.randn(3, 4).to(dtype), torch.empty(0, dtype=dtype), torch.ones(5)]
        if bad is not None:
            grads[0][1, 2] = bad
        before = [grad.clone() for grad in grads]
        versions = [grad._version for grad in grads]
        found = torch.zeros(())
        check(grads, found)
        assert float(found) == (bad is not None)
        assert [grad._version for grad in grads] == versions
        for grad, its in zip(grads, before, strict=True):
            torch.testing.assert_close(grad, its, rtol=0, atol=0, equal_nan=True)


def test_checking_many_elements_and_very_large_ones() -> None:
    large = torch.full((MANY + 3,), torch.finfo(torch.float32).max)
    found = torch.zeros(())
    check([large], found)
    assert float(found) == 0, "their squares overflow"
    large[-1] = math.nan
    check([large], found)
    assert float(found) == 1
