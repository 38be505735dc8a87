"""Gradients of half weights that autograd casts to fp32 again."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch

from halfstep.kernels import weight_gradients
from halfstep.kernels.cpu_half import cpu_half
from halfstep.kernels.native import half

HALVES = (torch.float16, torch.bfloat16)
IMAGES = torch.randn(2, 32, 6, 6, generator=torch.Generator().manual_seed(0))
WEIGHT = torch.randn(256, 32, 3, 3, generator=torch.Generator().manual_seed(1))
assert WEIGHT.numel() >= weight_gradients.SMALLEST


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    if not half.round_to_half(torch.ones(16), torch.float16):
        pytest.skip("no C compiler, or the processor rounds one number at a time")


@pytest.fixture
def given_away(monkeypatch):
    """Addresses of copies that were given to a cast, or to a parameter."""
    found = []
    before = weight_gradients.round_to_half

    def round_to_half(values, dtype, *, narrow=None, wide=None):
        if wide is values:
            found.append(values.data_ptr())
        return before(values, dtype, narrow=narrow, wide=wide)

    monkeypatch.setattr(weight_gradients, "round_to_half", round_to_half)
    return found


def plainly(function):
    """Call a function where nothing is rounded in place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weight_gradients, "SMALLEST", 1 << 40)
        return function()


def under_autocast(dtype, *, uses=1, times=1.0):
    weight = WEIGHT.clone().requires_grad_()
    with cpu_half():
        with torch.autocast("cpu", dtype):
            out = sum(F.conv2d(IMAGES, weight) for _ in range(uses))
        (out.float().sum() * times).backward()
    return weight.grad


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("uses", [1, 2])
@pytest.mark.parametrize("times", [1e-6, 1.0, 1e6])
def test_under_autocast_they_are_those_of_two_casts(dtype, uses, times, given_away):
    grad = under_autocast(dtype, uses=uses, times=times)
    assert len(given_away) == uses
    expected = plainly(lambda: under_autocast(dtype, uses=uses, times=times))
    assert grad.dtype == torch.float32
    assert type(grad) is torch.Tensor
    assert torch.equal(grad.nan_to_num(), expected.nan_to_num())
    assert torch.equal(grad.isnan(), expected.isnan())


def test_the_parameter_gets_the_very_memory_that_the_convolution_wrote(given_away):
    grad = under_autocast(torch.float16)
    assert [grad.data_ptr()] == given_away


def test_they_are_added_to_those_of_a_backward_before():
    def twice():
        weight = WEIGHT.clone().requires_grad_()
        for _ in range(2):
            with cpu_half():
                with torch.autocast("cpu", torch.float16):
                    loss = F.conv2d(IMAGES, weight).float().sum()
                loss.backward()
        return weight.grad

    assert torch.equal(twice(), plainly(twice))


@pytest.mark.parametrize("dtype", HALVES)
def test_a_half_parameter_that_asks_for_fp32_gets_it_rounded(dtype, given_away):
    def run():
        weight = WEIGHT.to(dtype).requires_grad_()
        weight.grad_dtype = torch.float32
        with cpu_half():
            F.conv2d(IMAGES.to(dtype), weight).float().sum().backward()
        return weight.grad

    grad, expected = run(), plainly(run)
    assert grad.dtype == expected.dtype == torch.float32
    assert torch.equal(grad, expected)
    assert len(given_away) == 1


def test_a_half_parameter_gets_half_gradients(given_away):
    weight = WEIGHT.half().requires_grad_()
    with cpu_half():
        F.conv2d(IMAGES.half(), weight).float().sum().backward()
    assert weight.grad.dtype == torch.float16
    assert not given_away


def test_gradients_of_the_cast_itself_are_half_numbers_with_memory():
    weight = WEIGHT.clone().requires_grad_()
    with cpu_half():
        narrow = weight.half()
        loss = F.conv2d(IMAGES.half(), narrow).float().sum()
        of_narrow, of_weight = torch.autograd.grad(loss, [narrow, weight])
    of_weight.mul_(2)  # what one is, the other does not share
    expected = plainly(lambda: under_autocast(torch.float16))
    assert of_narrow.dtype == torch.float16
    assert torch.equal(of_narrow.float(), expected)
    assert torch.equal(of_narrow + 0, expected.half())
    assert torch.equal(of_weight, expected * 2)


def test_under_create_graph_they_can_be_differentiated(given_away):
    def penalty():
        weight = WEIGHT.clone().requires_grad_()
        with cpu_half(), torch.autocast("cpu", torch.float16):
            loss = F.conv2d(IMAGES, weight).float().square().mean()
            (grad,) = torch.autograd.grad(loss, weight, create_graph=True)
            before = len(given_away)
            grad.square().sum().backward()
        return before, weight.grad

    before, grad = penalty()
    assert before == 0
    assert torch.equal(grad, plainly(penalty)[1])


def test_a_half_gradient_that_a_hook_keeps_is_none_of_the_parameter(given_away):
    weight, seen = WEIGHT.clone().requires_grad_(), []
    with cpu_half():
        narrow = weight.half()
        narrow.register_hook(seen.append)
        F.conv2d(IMAGES.half(), narrow).float().sum().backward()
    assert len(given_away) == 1
    weight.grad.mul_(2)  # as a step does
    assert torch.equal(seen[0].float() * 2, weight.grad)
    assert torch.equal((seen[0] + 0).float() * 2, weight.grad)


def test_a_gradient_that_is_read_before_its_cast_has_its_numbers(given_away):
    weight, sums = WEIGHT.clone().requires_grad_(), []
    with cpu_half():
        narrow = weight.half()
        narrow.grad_fn.register_prehook(lambda grads: sums.append(grads[0].double().sum().item()))
        F.conv2d(IMAGES.half(), narrow).float().sum().backward()
    assert len(given_away) == 1
    assert sums == [weight.grad.double().sum().item()]
