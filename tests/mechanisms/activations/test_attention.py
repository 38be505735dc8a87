"""Attention keeps queries and keys whole: its gradient is right on average at large logits too."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from .nets import relative_error, saved, using


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}])
@pytest.mark.parametrize("size", [1, 6])
def test_large_logits_lose_no_more_than_small_ones(size, options):
    def attend(given: torch.Tensor) -> torch.Tensor:
        query, key, value = given.split(32, -1)
        return scaled_dot_product_attention(query * size, key * size, value, **options)

    torch.manual_seed(0)
    values = torch.randn(2, 4, 64, 96)
    assert relative_error(attend, values, "act8") < 0.02
    assert relative_error(attend, values, "act2") > 0.02


def test_slices_of_one_projection_are_kept_apart_and_only_values_in_few_bits():
    projected = torch.randn(2, 64, 3 * 128, requires_grad=True)
    with using("act2"):
        sliced = (projected * 1.0).view(2, 64, 3, 4, 32).permute(2, 0, 3, 1, 4)
        result = scaled_dot_product_attention(*sliced.unbind(0))
        kept = saved()
    assert sorted(each.packed is None for each in kept) == [False, True, True]
    whole = [each.whole.tensor.untyped_storage().nbytes() for each in kept if each.whole]
    assert whole == [2 * 64 * 128 * 4] * 2
    exact = scaled_dot_product_attention(*sliced.detach().unbind(0))
    assert torch.allclose(result, exact, atol=1e-6)
    result.sum().backward()


def test_a_trained_mask_has_its_gradient():
    query, key, value = torch.randn(3, 2, 4, 64, 32).unbind(0)
    masks = [torch.zeros(1, 4, 64, 64, requires_grad=True) for _ in range(2)]
    weights = torch.randn(2, 4, 64, 32)
    with using("act8"):
        result = scaled_dot_product_attention(
            query, key, value.clone().requires_grad_() * 1.0, masks[0]
        )
    (result * weights).sum().backward()
    exact = scaled_dot_product_attention(query, key, value, masks[1])
    (exact * weights).sum().backward()
    error = (masks[0].grad - masks[1].grad).norm() / masks[1].grad.norm()
    assert error < 0.02


def test_autocast_computes_the_same_again():
    torch.manual_seed(0)
    given = [torch.randn(2, 2, 64, 32, requires_grad=True) for _ in range(3)]
    found = []
    for compressed in (False, True):
        for each in given:
            each.grad = None
        with torch.autocast("cpu", dtype=torch.bfloat16):
            if compressed:
                with using("act8"):
                    result = scaled_dot_product_attention(*(each * 1.0 for each in given))
            else:
                result = scaled_dot_product_attention(*given)
        result.float().sum().backward()
        found.append(given[2].grad.clone())
    assert torch.equal(found[0], found[1])
