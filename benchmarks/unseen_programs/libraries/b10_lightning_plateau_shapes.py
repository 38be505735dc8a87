"""Classify noisy outlines with Lightning, lowering the learning rate on plateaus."""
import logging

import torch

torch.set_num_threads(1)
torch.manual_seed(9)

import lightning as L
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def outlines(n, seed, points=48, classes=6):
    """Closed curves r(t) = 1 + a cos(k t + phase); the class is k - 2."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    t = torch.linspace(0, 2 * torch.pi, points + 1)[:-1]
    phase = 2 * torch.pi * torch.rand(n, 1, generator=g)
    amp = 0.2 + 0.2 * torch.rand(n, 1, generator=g)
    r = 1 + amp * torch.cos((y[:, None] + 2) * t + phase)
    r = r + 0.22 * torch.randn(n, points, generator=g)
    return torch.stack([r * t.cos(), r * t.sin()], dim=1), y


class OutlineNet(L.LightningModule):
    def __init__(self, lr=2e-3, width=32):
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(
            nn.Conv1d(2, width, 9, padding=4, padding_mode="circular"), nn.GELU(),
            nn.Conv1d(width, width, 9, stride=2, padding=4, padding_mode="circular"), nn.GELU(),
            nn.Conv1d(width, width, 5, padding=2, padding_mode="circular"), nn.GELU(),
        )
        self.head = nn.Linear(2 * width, 6)

    def forward(self, x):
        h = self.body(x)
        return self.head(torch.cat([h.mean(-1), h.std(-1)], dim=1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("val_loss", F.cross_entropy(logits, y))
        self.log("val_acc", (logits.argmax(1) == y).float().mean())

    def on_validation_epoch_end(self):
        m = self.trainer.callback_metrics
        lr = self.optimizers().param_groups[0]["lr"]
        print(f"epoch {self.current_epoch:2d} lr {lr:.1e} acc {m['val_acc']:.3f}")

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.2, patience=1)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": plateau, "monitor": "val_acc", "interval": "epoch"},
        }


def main():
    train = DataLoader(TensorDataset(*outlines(960, 1)), batch_size=64, shuffle=True)
    valid = DataLoader(TensorDataset(*outlines(300, 2)), batch_size=300)
    trainer = L.Trainer(
        max_epochs=12, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )
    trainer.fit(OutlineNet(), train, valid)
    print(f"RESULT {trainer.callback_metrics['val_loss'].item():.4f}")


if __name__ == "__main__":
    main()
