"""The format of `.grad` beside half parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD

from halfstep.kernels.gradients import keep
from halfstep.mechanisms.gradients.technique import GradientFormat


def half_layer() -> nn.Linear:
    layer = nn.Linear(2, 2, bias=False).half()
    nn.init.ones_(layer.weight)
    return layer


def backward(layer: nn.Module, factor: float = 1.0) -> None:
    (layer(torch.ones(1, 2, dtype=torch.float16)) * factor).sum().backward()


@pytest.mark.parametrize(("name", "dtype"), [("fp16", torch.float16), ("fp32", torch.float32)])
def test_one_backward_leaves_the_chosen_format(name, dtype) -> None:
    layer = half_layer()
    technique = GradientFormat(name, narrow=True)
    technique.prepare([layer], [])
    technique.before_backward(layer.parameters(), again=False)
    backward(layer)
    assert layer.weight.grad.dtype == dtype


def test_the_second_backward_of_a_window_accumulates_in_fp32() -> None:
    layer = half_layer()
    technique = GradientFormat("fp16", narrow=True)
    technique.before_backward(layer.parameters(), again=False)
    backward(layer)
    technique.before_backward(layer.parameters(), again=True)
    backward(layer, 2.0**-12)
    assert layer.weight.grad.dtype == torch.float32
    assert (layer.weight.grad == 1 + 2.0**-12).all()


@pytest.mark.parametrize("narrow", [True, False])
def test_an_optimizer_gets_gradients_in_the_format_of_its_parameters(narrow: bool) -> None:
    layer = half_layer()
    backward(layer)
    keep(layer.weight, torch.float32)
    technique = GradientFormat("fp16", narrow=narrow)
    technique.before_step(SGD(layer.parameters()), list(layer.parameters()))
    assert layer.weight.grad.dtype == (torch.float16 if narrow else torch.float32)


def test_closing_lets_autograd_choose_again() -> None:
    layer = half_layer()
    technique = GradientFormat("fp32", narrow=False)
    technique.prepare([layer], [])
    technique.before_backward(layer.parameters(), again=False)
    technique.close()
    backward(layer)
    assert layer.weight.grad.dtype == torch.float16
