"""Lets doctor watch the Trainer of transformers, and explain why the loss becomes NaN.

pip install 'halfstep[transformers]'
python examples/transformers_watch.py            # the logarithm of 0 in a batch
python examples/transformers_watch.py --mended
"""

from __future__ import annotations

import sys
import tempfile
from typing import TYPE_CHECKING

import torch
import transformers
from torch import nn
from torch.nn.functional import cross_entropy

from halfstep.transformers import WatchCallback

if TYPE_CHECKING:
    from halfstep.doctor import Diagnosis


class Classifier(nn.Module):
    """Weights the loss of each sample by the logarithm of its frequency, which may be 0.

    Args:
        smallest: The smallest frequency that the logarithm gets.
    """

    def __init__(self, smallest: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        self.smallest = smallest

    def forward(
        self, inputs: torch.Tensor, frequency: torch.Tensor, labels: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return the loss and the logits, as the Trainer expects them."""
        logits = self.layers(inputs)
        weight = -frequency.clamp(min=self.smallest).log()
        loss = (weight * cross_entropy(logits, labels, reduction="none")).mean()
        return {"loss": loss, "logits": logits}


def samples() -> list[dict[str, torch.Tensor]]:
    """Return samples; one has a frequency of 0."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(48, 8, generator=generator)
    frequency = torch.rand(48, generator=generator)
    frequency[20] = 0
    labels = inputs[:, :3].argmax(1)
    return [
        {"inputs": inputs[row], "frequency": frequency[row], "labels": labels[row]}
        for row in range(len(inputs))
    ]


def main(*arguments: str) -> Diagnosis | None:
    """Train for an epoch; doctor prints its diagnosis at the end."""
    transformers.set_seed(0)
    model = Classifier(smallest=1e-6 if "--mended" in arguments else 0)
    watching = WatchCallback()
    with tempfile.TemporaryDirectory() as folder:
        settings = transformers.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=6,
            num_train_epochs=1,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
        )
        trainer = transformers.Trainer(
            model, settings, train_dataset=samples(), callbacks=[watching]
        )
        trainer.train()
    return watching.diagnosis


if __name__ == "__main__":
    main(*sys.argv[1:])
