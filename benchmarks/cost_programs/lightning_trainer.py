"""A ResNet trained by Lightning's Trainer in bf16, with metrics, validation and checkpoints."""

from __future__ import annotations

import logging
import sys
import tempfile
import warnings

import lightning
import timm
import torch
from clock import mark
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = int(sys.argv[1])
BATCH, PER_EPOCH = 8, 30
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


class Images(Dataset):
    """Images of ten classes with noise."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        draws = torch.Generator().manual_seed(number)
        image = torch.randn(3, 32, 32, generator=draws)
        image[:, number % 10 * 3] += 2
        return image, number % 10


class Classifier(lightning.LightningModule):
    """A ResNet-18 with SGD and a cosine schedule."""

    def __init__(self) -> None:
        super().__init__()
        self.network = timm.create_model("resnet18", num_classes=10)
        self.loss = nn.CrossEntropyLoss(label_smoothing=0.1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return self.network(images)

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        """Return the loss of a batch."""
        del number
        images, labels = batch
        logits = self(images)
        loss = self.loss(logits, labels)
        self.log("train_loss", loss, prog_bar=True)
        self.log("train_accuracy", (logits.argmax(1) == labels).float().mean(), on_epoch=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], number: int) -> None:
        """Log the loss and accuracy of a batch."""
        del number
        images, labels = batch
        logits = self(images)
        self.log("val_loss", self.loss(logits, labels))
        self.log("val_accuracy", (logits.argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> dict[str, object]:
        """Return the optimizer and its schedule."""
        optimizer = torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


def main() -> None:
    """Train for the steps of the command line."""
    mark("train")
    lightning.seed_everything(0, verbose=False)
    train = DataLoader(Images(BATCH * PER_EPOCH), BATCH, shuffle=True)
    with tempfile.TemporaryDirectory() as directory:
        trainer = lightning.Trainer(
            accelerator="cpu",
            precision="bf16-mixed",
            max_steps=STEPS,
            gradient_clip_val=1.0,
            log_every_n_steps=10,
            enable_progress_bar=False,
            enable_model_summary=False,
            logger=False,
            default_root_dir=directory,
        )
        trainer.fit(Classifier(), train, DataLoader(Images(40), BATCH))
    mark("end")


main()
