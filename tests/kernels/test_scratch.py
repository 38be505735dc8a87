"""Copies that a forward kernel keeps for its backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch

from halfstep.kernels.cpu_half import cpu_half
from halfstep.kernels.scratch import WideCopies, wide_copies, widened


def half(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).half()


def test_a_copy_is_taken_as_often_as_it_was_widened():
    copies, value = WideCopies(1 << 20), half(20_000)
    kept = [copies.widen(value) for _ in range(2)]
    assert torch.equal(kept[0], value.float())
    assert copies.take(value) is kept[1]
    assert copies.take(value) is kept[1]
    assert copies.take(value) is None


@pytest.mark.parametrize(
    "change", [lambda value: value.add_(1), lambda value: setattr(value, "data", half(20_000) + 1)]
)
def test_no_copy_is_taken_of_what_has_changed(change):
    copies, value = WideCopies(1 << 20), half(20_000)
    copies.widen(value)
    change(value)
    assert copies.take(value) is None


def test_a_forward_sees_a_parameter_that_was_written_through_data():
    images, weight = (each.requires_grad_() for each in (half(8, 16, 12, 12), half(128, 16, 3, 3)))
    with cpu_half():
        F.conv2d(images, weight)  # no backward
        weight.data.zero_()
        out = F.conv2d(images, weight)
        assert not out.any()
        (found,) = torch.autograd.grad(out.sum(), images)
        assert not found.any()


def test_a_convolution_whose_backward_is_small_leaves_no_copy():
    images, weight = (each.requires_grad_() for each in (half(2, 64, 5, 5), half(64, 64, 1, 1)))
    with cpu_half():
        F.conv2d(images, weight, half(1).expand(64)).square().sum().backward()
        assert not wide_copies._copies


def test_a_copy_dies_with_its_tensor_and_makes_room():
    copies = WideCopies(120_000)
    first, second = half(20_000), half(20_000)
    assert copies.widen(first) is not None
    assert copies.widen(second) is None, "more than may be kept"
    del first
    assert copies.widen(second) is not None


def test_small_tensors_and_those_elsewhere_have_no_copy():
    copies = WideCopies(1 << 20)
    assert copies.widen(half(10)) is None
    assert copies.widen(torch.empty(20_000, dtype=torch.float16, device="meta")) is None


def gradients(images, weight):
    """Of two convolutions that share their images, in half."""
    images, weight = (each.clone().requires_grad_() for each in (images, weight))
    with cpu_half():
        out = F.conv2d(images, weight).relu() + F.conv2d(images, weight, stride=1)
        loss = out.sum()
        return torch.autograd.grad(loss, [images, weight])


def test_the_backward_takes_them_and_computes_the_same(monkeypatch):
    images, weight = half(8, 16, 12, 12), half(128, 16, 3, 3)
    taken = []
    take = wide_copies.take
    monkeypatch.setattr(wide_copies, "take", lambda value: taken.append(take(value)) or taken[-1])
    with_copies = gradients(images, weight)
    assert len(taken) == 4
    assert all(copy is not None for copy in taken)
    monkeypatch.setattr(wide_copies, "take", lambda _: None)
    without = gradients(images, weight)
    assert all(torch.equal(a, b) for a, b in zip(with_copies, without, strict=True))


def test_none_is_left_when_the_kernels_are_given_back():
    images, weight = half(8, 16, 12, 12), half(128, 16, 3, 3).requires_grad_()
    with cpu_half():
        loss = F.conv2d(images, weight).sum()
        assert wide_copies._copies
    assert not wide_copies._copies
    del loss


def test_a_large_tensor_is_widened_as_torch_does_whatever_its_strides():
    value = half(4, 64, 32, 64)
    for each in (value, value.to(memory_format=torch.channels_last), value.transpose(1, 3)):
        wide = widened(each)
        assert torch.equal(wide, each.float())
        assert wide.stride() == each.float().stride()
    single = value.float()
    assert widened(single) is single
