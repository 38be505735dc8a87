"""Attention that saves only queries and keys (exact) and values (in a few bits).

The gradient contains an exponential of queries and keys. If these were rounded, the gradient would
be wrong on average, and by much at large logits. The gradient is linear in the values, if the
output is computed from the same rounded values. So the backward pass computes the output again,
with any kernel that torch selects, and neither the output nor attention weights are saved.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from halfstep.mechanisms.activations.store import refuse_second_derivative, uncompressed


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
        """Compute attention; the arguments are those of `scaled_dot_product_attention`."""
        result = scaled_dot_product_attention(query, key, value, mask, **options)
        ctx.save_for_backward(query, key, value, mask)
        ctx.options, ctx.computed_in = options, result.dtype
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        """Compute attention again, and return the gradients of query, key, value and mask."""
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
    """Return query, key and value, with `value` in a storage that it does not share.

    If they are slices of one projection, they share its storage, and the exact queries and keys
    would keep all of that storage in memory. A `value` that is the query or the key itself is not
    copied.
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
