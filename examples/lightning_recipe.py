"""Trains under a recipe in Lightning's Trainer, watched by doctor.

pip install 'halfstep[lightning]'
python examples/lightning_recipe.py bf16-sr
"""

from __future__ import annotations

import sys

import lightning.pytorch as pl
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from halfstep.lightning import RecipePrecision, WatchCallback


class Classifier(pl.LightningModule):
    """Tells which of its first three numbers is the largest."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        inputs, labels = batch
        return cross_entropy(self.net(inputs).float(), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main(recipe: str = "fp16") -> float:
    """Train for two epochs; return the share of right answers."""
    torch.manual_seed(0)
    inputs = torch.randn(960, 8)
    labels = inputs[:, :3].argmax(1)
    trainer = pl.Trainer(
        max_epochs=2,
        plugins=RecipePrecision(recipe),
        callbacks=WatchCallback(),
        logger=False,
        enable_checkpointing=False,
    )
    module = Classifier()
    trainer.fit(module, DataLoader(TensorDataset(inputs, labels), 32, shuffle=True))
    with torch.no_grad():
        right = module.float().eval().net(inputs).argmax(1).eq(labels).float().mean().item()
    print(f"{recipe}: {right:.1%} right")
    return right


if __name__ == "__main__":
    main(*sys.argv[1:2])
