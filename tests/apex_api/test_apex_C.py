"""Tensors are put behind each other and taken apart again."""

import torch

from halfstep.apex import apex_C


def test_what_is_flattened_can_be_taken_apart_again():
    tensors = [torch.randn(2, 3), torch.randn(4), torch.randn(())]
    flat = apex_C.flatten(tensors)
    assert torch.equal(flat, torch.cat([tensor.flatten() for tensor in tensors]))
    for tensor, again in zip(tensors, apex_C.unflatten(flat, tensors), strict=True):
        assert torch.equal(tensor, again)
