"""The gradient that a backward begins with, where nobody needs the loss that it stands for.

A loss that is weighted by w and multiplied by the scale s has the gradient s * w with regard to
the loss itself. A backward that begins with that number computes the same bits as one that begins
with a 1 at the product, and neither makes the products nor goes back through them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from halfstep.engine.weights import Weight


class RootGradient:
    """The root gradients of an engine's losses, each kept until another one is asked for."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._scale: torch.Tensor | None = None
        self._root = torch.empty(0)

    def of(
        self, loss: torch.Tensor, scale: torch.Tensor | None, weight: Weight | None
    ) -> torch.Tensor:
        """Return what the backward of `loss` begins with.

        Args:
            loss: Scalar.
            scale: The loss scale, fp32, which is never written to; None without one.
            weight: The weight of the loss; None if it is 1.

        Returns:
            A scalar of the format of the loss, on its device.
        """
        key = (loss.dtype, loss.device, weight)
        # Whoever gets it may have written to it: a hook of the caller's on the loss, say.
        if scale is not self._scale or key != self._key or self._root._version:
            root = torch.ones_like(loss) if scale is None else scale.to(loss, copy=True)
            self._root = root if weight is None else weight.of(root)
            self._key, self._scale = key, scale
        return self._root


def is_bare(loss: torch.Tensor) -> bool:
    """Tell whether `loss` is a scalar and nothing but a tensor, so that its root can be made."""
    return type(loss) is torch.Tensor and loss.dim() == 0
