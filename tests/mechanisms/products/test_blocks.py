"""Blocks along any axis, and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from halfstep.mechanisms.products.blocks import Blocks


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((6, 10), (1,)),
        ((6, 10), (0,)),
        ((2, 3, 10), (2,)),
        ((2, 3, 10), (0, 1)),
        ((10,), (0,)),
        ((10,), ()),
        ((2, 8, 3, 3), (1,)),
        ((2, 8, 3, 3), (0, 2, 3)),
        ((8, 6, 2, 2), (0,)),
    ],
)
def test_blocks_are_consecutive_elements_along_the_axis(shape, axis) -> None:
    value = torch.randn(shape)
    blocks = Blocks.of(value, axis, 4)
    assert torch.equal(blocks.joined(blocks.values), value)
    largest = blocks.joined(blocks.largest().expand_as(blocks.values)).numpy()
    if len(axis) == 1:
        rows, found = (np.moveaxis(each, axis[0], -1) for each in (value.numpy(), largest))
    else:
        (channel,) = set(range(len(shape))) - set(axis)
        rows, found = (np.moveaxis(each, channel, 0) for each in (value.numpy(), largest))
        rows, found = rows.reshape(shape[channel], -1), found.reshape(shape[channel], -1)
    for start in range(0, rows.shape[-1], 4):
        part = np.abs(rows[..., start : start + 4]).max(-1, keepdims=True)
        assert (found[..., start : start + 4] == part).all()
