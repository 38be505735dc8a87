"""What makes gradients bad is in the sample of each step, whichever row or column it comes to."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from halfstep.doctor import Watch
from halfstep.doctor.signals.state.finite import SMALL, sample_is_finite
from halfstep.doctor.signals.values import numbers

SHAPES = [(96, 64), (10, 5000), (5000, 3), (64, 32, 3, 3)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_a_bad_row_and_a_bad_column_are_in_every_sample(shape, bad) -> None:
    assert torch.Size(shape).numel() > SMALL
    for number in range(7):
        row, column = torch.ones(shape), torch.ones(shape)
        row[shape[0] // 2] = bad
        column[:, shape[1] // 3] = bad
        assert sample_is_finite([torch.ones(3), torch.ones(shape)], number)
        assert not sample_is_finite([torch.ones(3), row], number)
        assert not sample_is_finite([column], number)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_small_gradients_are_gone_through_and_a_large_sum_is_no_inf(dtype) -> None:
    largest = torch.full((SMALL,), torch.finfo(dtype).max, dtype=dtype)
    assert sample_is_finite([largest, torch.zeros(2)], 3)
    largest[SMALL - 1] = float("nan")
    assert not sample_is_finite([torch.zeros(2), largest], 3)


def test_rows_of_a_sparse_and_of_a_flattened_gradient_are_met() -> None:
    rows = torch.ones(2, 3000)
    rows[1] = float("nan")
    sparse = torch.sparse_coo_tensor(torch.tensor([[4, 9]]), rows, (50_000, 3000))
    flat = torch.ones(100_000)
    flat[64_000:64_064] = float("inf")
    for number in range(3):
        assert not sample_is_finite([sparse], number)
        assert not sample_is_finite([flat], number)


class Rooted(nn.Module):
    """Its output has a root of zero once its input is zero: the loss stays finite."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(8, 1024, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.wide(images).square().mean(1).sqrt()


def test_the_step_whose_gradients_are_bad_is_met_long_after_the_start() -> None:
    bad = numbers.FIRST + 2 * numbers.EVERY + 3
    torch.manual_seed(0)
    model = Rooted()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    norms: list[torch.Tensor] = []
    watch = Watch()
    with watch:
        for step in range(bad + 1):
            images = torch.zeros(4, 8) if step == bad else torch.randn(4, 8)
            optimizer.zero_grad()
            functional.mse_loss(model(images), torch.ones(4)).backward()
            optimizer.step()
            norms.append(model.wide.weight.grad.norm())
    assert not watch.troubles
    evidence = watch.close()
    assert evidence.numbers.first_bad.iteration == bad
    assert evidence.numbers.first_bad.loss == 1.0
    assert [each.op for each in evidence.births if each.culprit]
    for step in evidence.numbers.steps[:-1]:
        if step.gradient_norm is not None:
            assert step.gradient_norm == pytest.approx(float(norms[step.iteration]), rel=1e-5)
    measured = [each.iteration for each in evidence.numbers.steps if each.gradient_norm is not None]
    assert measured == [*range(numbers.FIRST), 64, 72, 80, bad]
