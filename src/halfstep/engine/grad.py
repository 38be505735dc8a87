"""Gradients as values: true, differentiable, and representable on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

LARGEST_FACTOR = 2.0**15
"""The gradient of a sum is the factor that it is multiplied by, which fp16 must hold."""


def true_gradients(
    outputs: torch.Tensor,
    inputs: Sequence[torch.Tensor],
    scale: torch.Tensor | None,
    *,
    create_graph: bool,
    retain_graph: bool | None,
    allow_unused: bool,
) -> tuple[torch.Tensor, ...]:
    """Differentiate the sum of `outputs` under a loss scale, and undo the scale.

    Args:
        outputs: Tensor of any shape.
        inputs: What to differentiate by.
        scale: The loss scale, or None.
        create_graph: Whether the gradients can be differentiated again.
        retain_graph: As in `torch.autograd.grad`.
        allow_unused: Whether an input may have no part in `outputs`; its gradient is zero then.

    Returns:
        One gradient for each input, fp32 at least.
    """
    total = outputs.float().sum() if outputs.dtype != torch.float64 else outputs.sum()
    # A copy, as the graph keeps it and the next update changes the scale in place.
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
