"""A small training by Lightning's Trainer: bf16, accumulation, clipping, validation, a schedule."""

import logging
import tempfile

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3)
        )

    def training_step(self, batch, number):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.layers(images), labels)
        print(loss.item().hex())  # noqa: T201  # what the test compares
        return loss

    def validation_step(self, batch, number):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.layers(images), labels)
        print(loss.item().hex())  # noqa: T201

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


def main() -> None:
    lightning.seed_everything(3, verbose=False)
    images = torch.randn(48, 8)
    data = DataLoader(TensorDataset(images, images[:, :3].argmax(1)), 6)
    with tempfile.TemporaryDirectory() as directory:
        trainer = lightning.Trainer(
            accelerator="cpu",
            precision="bf16-mixed",
            max_epochs=2,
            accumulate_grad_batches=3,
            gradient_clip_val=1.0,
            enable_progress_bar=False,
            enable_model_summary=False,
            logger=False,
            default_root_dir=directory,
        )
        trainer.fit(Classifier(), data, data)


main()
