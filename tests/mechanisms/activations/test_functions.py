"""Functions that keep less than autograd would, in place or not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from .nets import ENOUGH, saved, using


def test_dropout_keeps_its_mask():
    class Dropping(nn.Module):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return functional.dropout(values * 1.0, 0.3)

    values = torch.randn(8192, requires_grad=True)
    with using("act2"):
        result = Dropping()(values)
    result.backward(torch.ones_like(result))
    assert torch.equal(values.grad != 0, result != 0)
    assert torch.allclose(values.grad[values.grad != 0], torch.tensor(1 / 0.7))
    assert 0.6 < (result != 0).float().mean() < 0.8


@pytest.mark.parametrize(
    ("size", "options"),
    [
        ((2, 8, 17, 19), {"kernel_size": 3, "stride": 2, "padding": 1}),
        ((2, 8, 16, 16), {"kernel_size": 2}),
        ((2, 8, 16, 16), {"kernel_size": (3, 5), "stride": 2, "padding": (1, 2), "dilation": 2}),
        ((2, 8, 15, 15), {"kernel_size": 2, "ceil_mode": True}),
    ],
)
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_max_pooling_keeps_where_the_largest_were(size, options, form):
    values = torch.randn(size).repeat(2, 2, 1, 1).contiguous(memory_format=form)
    given, expected = values.clone().requires_grad_(), values.clone().requires_grad_()
    with using("act2"):
        result = functional.max_pool2d(given * 1.0, **options)
    exact = functional.max_pool2d(expected, **options)
    assert torch.equal(result, exact)
    weights = torch.randn_like(exact)
    result.backward(weights)
    exact.backward(weights)
    assert torch.allclose(given.grad, expected.grad, atol=1e-6)


def test_a_rectifier_in_place_changes_what_it_is_given():
    values = torch.randn(64, 128, requires_grad=True)
    with using("act4"):
        shared = values * 1.0
        result = shared.relu_()
    assert result is shared or torch.equal(result, shared)
    assert (shared >= 0).all()
    (result + shared).sum().backward()
    assert torch.equal(values.grad, 2.0 * (values > 0))


IN_PLACE = {
    "silu": lambda given: functional.silu(given, inplace=True),
    "hardswish": lambda given: functional.hardswish(given, True),  # noqa: FBT003  (as it may be called)
    "hardsigmoid": lambda given: functional.hardsigmoid(given, inplace=True),
    "mish": lambda given: functional.mish(given, inplace=True),
    "elu": lambda given: functional.elu(given, 1.5, True),  # noqa: FBT003
    "leaky_relu": lambda given: functional.leaky_relu_(given, 0.2),
    "selu": torch.selu_,
    "sigmoid": torch.Tensor.sigmoid_,
    "relu6": lambda given: functional.relu6(given, inplace=True),
    "hardtanh": lambda given: functional.hardtanh(given, -0.5, 2.0, inplace=True),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_function_in_place_changes_what_it_is_given_and_is_compressed(name):
    call = IN_PLACE[name]
    values = torch.randn(64, 128) * 4
    given, expected = values.clone().requires_grad_(), values.clone().requires_grad_()
    with using("act8"):
        shared = given * 1.0
        result = call(shared)
        packed = sum(kept.packed is not None for kept in saved())
    exact = call(expected * 1.0)
    assert torch.equal(result, exact)
    assert result.data_ptr() == shared.data_ptr()
    assert packed == (name not in {"relu6", "hardtanh"})
    result.sum().backward()
    exact.sum().backward()
    assert torch.allclose(given.grad, expected.grad, atol=0.02)
    if not packed:  # a bit an element says all of it
        assert torch.equal(given.grad, expected.grad)


def test_dropout_in_place_drops_from_what_it_is_given():
    values = torch.ones(ENOUGH, requires_grad=True)
    with using("act2"):
        shared = values * 1.0
        result = functional.dropout(shared, 0.3, inplace=True)
    assert result.data_ptr() == shared.data_ptr()
    result.sum().backward()
    assert torch.equal(values.grad, result)
    assert 0.6 < (result != 0).float().mean() < 0.8


def test_a_view_in_place_is_left_to_torch():
    values = torch.randn(2, ENOUGH, requires_grad=True)
    with using("act8"):
        shared = values * 1.0
        functional.silu(shared[0], inplace=True)
    shared.sum().backward()
    expected = values.detach().clone().requires_grad_()
    (functional.silu(expected[0]).sum() + expected[1].sum()).backward()
    assert torch.allclose(values.grad, expected.grad, atol=1e-6)
