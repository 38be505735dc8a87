"""Builds the loss that a config names, which is a mean over the images of a batch.

Labels are class indices, int64 (N,), or with mixup and CutMix probabilities, fp32 (N, classes).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from halfstep.errors import UserError
from halfstep.train.config import import_path

if TYPE_CHECKING:
    from halfstep.train.config import Config

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""A function from logits (N, classes) and labels to a scalar."""


def build(config: Config, classes: int, device: torch.device) -> Loss:
    """Return the loss that `config` names, for logits on `device`.

    Raises:
        UserError: If the number of class weights is not the number of classes, if a loss of the
            user cannot be imported, or if it is combined with label smoothing.
    """
    chosen, smoothing = config.loss, config.label_smoothing
    if chosen.name.startswith("import:"):
        if smoothing:
            raise UserError(
                f"label_smoothing is {smoothing}, which loss.name={chosen.name} does not support; "
                "write label_smoothing=0"
            )
        return import_path.load(chosen.name.removeprefix("import:"), "loss.name")
    weights = None
    if chosen.class_weights is not None:
        if len(chosen.class_weights) != classes:
            raise UserError(
                f"loss.class_weights has {len(chosen.class_weights)} values, but there are "
                f"{classes} classes; write one for each"
            )
        weights = torch.tensor(chosen.class_weights, device=device)
    if chosen.name == "bce":
        return partial(_bce, smoothing=smoothing)
    if chosen.name == "focal":
        return partial(_focal, gamma=chosen.gamma, smoothing=smoothing, weights=weights)
    if weights is None:
        return partial(functional.cross_entropy, label_smoothing=smoothing)
    return partial(_focal, gamma=0.0, smoothing=smoothing, weights=weights)


def _bce(logits: torch.Tensor, labels: torch.Tensor, *, smoothing: float) -> torch.Tensor:
    """Return the binary cross-entropy, a mean over images and classes."""
    logits = logits.float()
    return functional.binary_cross_entropy_with_logits(logits, _chances(logits, labels, smoothing))


def _focal(
    logits: torch.Tensor,
    labels: torch.Tensor,
    *,
    gamma: float,
    smoothing: float,
    weights: torch.Tensor | None,
) -> torch.Tensor:
    """Return the focal loss (Lin et al., arXiv:1708.02002, equation 4, over a softmax).

    With gamma 0 it is the cross-entropy. If labels are probabilities, the loss is the sum over the
    classes, weighted by their probabilities.
    """
    logs = logits.float().log_softmax(1)
    chances = _chances(logs, labels, smoothing)
    if weights is not None:
        chances = chances * weights
    if gamma:
        chances = chances * (1 - logs.exp()).pow(gamma)
    return -(chances * logs).sum(1).mean()


def _chances(logits: torch.Tensor, labels: torch.Tensor, smoothing: float) -> torch.Tensor:
    classes = logits.shape[1]
    if labels.ndim == 1:
        labels = functional.one_hot(labels, classes)
    return labels.to(logits.dtype) * (1 - smoothing) + smoothing / classes
