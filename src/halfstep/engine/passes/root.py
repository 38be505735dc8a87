"""The initial gradient of a backward, which replaces the products of loss, weight and loss scale.

The product of the loss, its weight w and the scale s has the gradient s * w with respect to the
loss. So a backward that starts at the loss with the gradient s * w computes the same bits as one
that starts at the product with the gradient 1. It saves the multiplications and their backward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from halfstep.engine.passes.weights import Weight


class RootGradient:
    """Computes the initial gradients of an engine's losses; one without a scale is kept."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._root = torch.empty(0)

    def of(
        self, loss: torch.Tensor, scale: torch.Tensor | None, weight: Weight | None
    ) -> torch.Tensor | None:
        """Return the initial gradient for the backward of `loss`; None for 1.

        Args:
            loss: Scalar.
            scale: The loss scale, an fp32 scalar; None without loss scaling.
            weight: The weight of the loss; None if it is 1.

        Returns:
            A scalar with the dtype and device of the loss.
        """
        if scale is not None:
            root = scale.to(loss, copy=True)
            return root if weight is None else weight.of(root)
        if weight is None:
            return None
        key = (loss.dtype, loss.device, weight)
        # The caller may have changed the kept tensor in place, for example in a hook on the loss.
        if key != self._key or self._root._version:
            self._root, self._key = weight.of(torch.ones_like(loss)), key
        return self._root


def is_bare(loss: torch.Tensor) -> bool:
    """Tell whether `loss` is a scalar of exactly the class `torch.Tensor`, as a root needs."""
    return type(loss) is torch.Tensor and loss.dim() == 0
