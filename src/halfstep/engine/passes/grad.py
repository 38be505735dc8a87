"""Gradients as return values: computed under the loss scale, returned unscaled, differentiable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

LARGEST_FACTOR = 2.0**15
"""Largest scale of the summed outputs. It is the gradient of each, which fp16 must hold."""


def true_gradients(
    outputs: torch.Tensor,
    inputs: Sequence[torch.Tensor],
    scale: torch.Tensor | None,
    *,
    create_graph: bool,
    retain_graph: bool | None,
    allow_unused: bool,
) -> tuple[torch.Tensor, ...]:
    """Differentiate the sum of `outputs` under a loss scale, and unscale the gradients.

    Args:
        outputs: Tensor of any shape.
        inputs: Tensors to differentiate with respect to.
        scale: The loss scale, a scalar, or None.
        create_graph: Whether the gradients can be differentiated again.
        retain_graph: As in `torch.autograd.grad`.
        allow_unused: Whether `outputs` may be independent of an input, whose gradient is then zero.

    Returns:
        One gradient for each input, in fp32 or wider.
    """
    total = outputs.float().sum() if outputs.dtype != torch.float64 else outputs.sum()
    factor = None if scale is None else scale.clamp(max=LARGEST_FACTOR)
    grads = torch.autograd.grad(
        total if factor is None else total * factor.to(total.device),
        inputs,
        create_graph=create_graph,
        retain_graph=retain_graph,
        allow_unused=allow_unused,
        materialize_grads=allow_unused,
    )
    wide = [grad if grad.dtype == torch.float64 else grad.float() for grad in grads]
    return tuple(wide if factor is None else (grad / factor.to(grad.device) for grad in wide))
