"""`SoftmaxCrossEntropyLoss`, which programs call as `SoftmaxCrossEntropyLoss.apply(...)`."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy


class SoftmaxCrossEntropyLoss:
    """The cross entropy of each row of logits."""

    @staticmethod
    def apply(
        logits: torch.Tensor,
        labels: torch.Tensor,
        smoothing: float = 0.0,
        padding_idx: int = 0,
        half_to_float: bool = False,
    ) -> torch.Tensor:
        """Return a loss for each row.

        Args:
            logits: Shape [rows, classes], any floating-point format; arithmetic is at least fp32.
            labels: Shape [rows], integer class indices from 0.
            smoothing: The part of the target probability that is spread over all classes.
            padding_idx: The label of rows to ignore; their loss is 0.
            half_to_float: Whether the losses of half-precision logits are fp32.

        Returns:
            Losses of shape [rows], in the format of the logits unless `half_to_float` is True.
        """
        wide = torch.promote_types(logits.dtype, torch.float32)
        losses = cross_entropy(
            logits.to(wide),
            labels,
            ignore_index=padding_idx,
            reduction="none",
            label_smoothing=smoothing,
        )
        return losses if half_to_float else losses.to(logits.dtype)
