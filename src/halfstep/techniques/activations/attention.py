"""Attention that keeps queries and keys whole, values in a few bits, and nothing else.

Its gradient goes through an exponential of queries and keys: rounded, they would make it wrong on
average, and at large logits by much. In the values it is linear, once the output is of the same
ones. So the output is computed again in the backward pass, whichever kernel of torch that takes,
and neither it nor any weights are kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from halfstep.techniques.activations.store import refuse_second_derivative, uncompressed


class Attention(torch.autograd.Function):
    """`scaled_dot_product_attention` without dropout."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        options: dict[str, Any],
    ) -> torch.Tensor:
        """Attend; tensors and options are those of `scaled_dot_product_attention`."""
        result = scaled_dot_product_attention(query, key, value, mask, **options)
        ctx.save_for_backward(query, key, value, mask)
        ctx.options, ctx.computed_in = options, result.dtype
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        """Attend again, and return the gradients of query, key, value and mask."""
        refuse_second_derivative()
        needed = ctx.needs_input_grad
        given = [
            each.detach().to(ctx.computed_in).requires_grad_(need) if _floats(each) else each
            for each, need in zip(ctx.saved_tensors, needed, strict=False)
        ]
        plainly = torch.autocast(gradient.device.type, enabled=False)
        with torch.enable_grad(), plainly, uncompressed():
            result = scaled_dot_product_attention(*given, **ctx.options)
            wanted = [each for each in given if _floats(each) and each.requires_grad]
            found = iter(torch.autograd.grad(result, wanted, gradient))
        return *(
            next(found).to(each.dtype) if need else None
            for each, need in zip(ctx.saved_tensors, needed, strict=False)
        ), None  # fmt: skip


def in_separate_storage(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> list[torch.Tensor]:
    """Return the three with the values in a storage of their own.

    Slices of one projection share its storage, and queries and keys that are kept would keep all of
    it. Values that are the queries or keys stay so.
    """
    if any(value.is_set_to(each) for each in (query, key)):
        return [query, key, value]
    memory = value.untyped_storage().data_ptr()
    return [
        each.clone() if each.untyped_storage().data_ptr() == memory else each
        for each in (query, key)
    ] + [value.contiguous()]


def _floats(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and tensor.is_floating_point()
