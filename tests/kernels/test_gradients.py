"""What is done to gradients, one verb each, in every format."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from halfstep.kernels.gradients import coalesce, dense, norms, put, unscale, widen


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
