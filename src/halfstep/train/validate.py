"""Validation: accuracy and loss of the engine's model, under the recipe that it trains with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional
from torchmetrics.classification import MulticlassAccuracy

if TYPE_CHECKING:
    from halfstep.train.setup import Setup


@dataclass(frozen=True, slots=True)
class Figures:
    """Loss (mean cross-entropy) and accuracy (0 to 1) over the validation split."""

    loss: float
    accuracy: float


def validate(setup: Setup) -> Figures:
    """Run the validation split through the model.

    The forward pass is the recipe's; the loss is computed in fp32 from its logits, so that a narrow
    format cannot overflow in the measuring itself.
    """
    device = setup.device
    accuracy = MulticlassAccuracy(len(setup.classes), average="micro", validate_args=False).to(
        device
    )
    loss_sum = torch.zeros((), device=device)
    images_seen = 0
    with setup.engine.evaluating():
        for images, labels in setup.on_device(setup.val):
            logits = setup.engine.model(images).float()
            with torch.autocast(device.type, enabled=False):
                loss_sum += functional.cross_entropy(logits, labels, reduction="sum")
            accuracy.update(logits, labels)
            images_seen += len(labels)
    return Figures(float(loss_sum) / images_seen, float(accuracy.compute()))
