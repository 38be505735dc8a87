"""Max pooling of half images on a CPU, element for element as PyTorch does it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch
from hypothesis import given, settings
from hypothesis import strategies as st

from halfstep.kernels import pooling
from halfstep.kernels.pooling import fast_half_pooling

SPECIAL = torch.tensor([0.0, -0.0, 1.0, 1.0, torch.inf, -torch.inf, torch.nan, -2.0, 6e-8])


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of a tensor; of NaN, those of one NaN."""
    if not tensor.is_floating_point():
        return tensor
    return tensor.masked_fill(tensor.isnan(), torch.nan).view(torch.int16)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    dtype=st.sampled_from([torch.float16, torch.bfloat16]),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    ceil_mode=st.booleans(),
    height=st.integers(5, 9),
    channels=st.sampled_from([16, 37]),
)
def test_values_indices_and_strides_are_those_of_pytorch(
    seed, dtype, kernel, stride, dilation, ceil_mode, height, channels
):
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(SPECIAL), (2, channels, height, 7), generator=generator)
    images = SPECIAL[drawn].to(dtype)
    args = (kernel, stride, kernel // 2, dilation, ceil_mode)
    expected = F.max_pool2d_with_indices(images, *args)
    with fast_half_pooling():
        found = F.max_pool2d_with_indices(images, *args)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.stride() == theirs.stride()
        assert torch.equal(bits(ours), bits(theirs))


@pytest.mark.parametrize(
    ("images", "faster"),
    [
        (torch.ones(2, 16, 4, 4).half(), True),
        (torch.ones(2, 16, 4, 4), False),
        (torch.ones(2, 3, 4, 4).half(), False),
        (torch.ones(16, 4, 4).half(), False),
        (torch.ones(2, 16, 4, 4).half().to(memory_format=torch.channels_last), False),
    ],
)
def test_only_contiguous_half_images_of_many_channels_change_their_layout(images, faster):
    layouts = []

    def original(given, *args):
        layouts.append(given.is_contiguous())
        return torch.ops.aten.max_pool2d_with_indices(given, *args)

    values, _ = pooling._max_pool2d(original, images, [2, 2])
    assert (layouts == [False]) == (faster or not images.is_contiguous())
    assert values.is_contiguous() == images.is_contiguous()


def test_gradients_go_to_the_elements_that_were_chosen():
    images = torch.randn(2, 16, 6, 6, generator=torch.Generator().manual_seed(0)).half()

    def gradient():
        leaf = images.clone().requires_grad_()
        F.max_pool2d(leaf, 3, 2, 1).float().square().sum().backward()
        return leaf.grad

    expected = gradient()
    with fast_half_pooling():
        assert torch.equal(gradient(), expected)
