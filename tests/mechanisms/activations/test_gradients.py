"""The loss is the same, and gradients are right on average."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from .nets import cosine, gradients, net


@pytest.mark.parametrize(("bits", "nearest"), [(8, 0.9999), (4, 0.98), (3, 0.9), (2, 0.6)])
def test_the_loss_is_the_same_and_gradients_are_near(bits, nearest):
    loss, (exact,) = gradients(net(), "fp32")
    found, (rounded,) = gradients(net(), f"fp32+act{bits}")
    assert found == loss
    assert nearest < cosine(exact, rounded) < 1


def assert_right_on_average(bits: int, draws: int) -> None:
    """The mean of gradients lies within its standard error of the exact one.

    Norm layers and their statistics are left out: their gradient is a product of two rounded
    tensors, which is right on average up to one part in as many elements as they normalise over.
    """
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1),
        nn.GELU(), nn.Conv2d(16, 8, 3, padding=1), nn.SiLU(), nn.Flatten(), nn.Linear(512, 5),
    )  # fmt: skip
    _, (exact,) = gradients(model, "fp32")
    _, found = gradients(model, f"fp32+act{bits}", draws)
    noisy = found.std(0) > exact.abs().max() * 1e-6
    error = (found.mean(0) - exact)[noisy] / (found.std(0)[noisy] / draws**0.5)
    assert noisy.sum() > 1000
    assert 0.9 < error.square().mean().sqrt() < 1.1  # 1, where the error is chance alone
    assert error.abs().max() < 6


@pytest.mark.parametrize("bits", [2, 4])
def test_gradients_are_right_on_average(bits):
    torch.manual_seed(3)
    assert_right_on_average(bits, 100)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_gradients_are_right_on_average_over_a_thousand_draws(bits):
    torch.manual_seed(3)
    assert_right_on_average(bits, 1000)
