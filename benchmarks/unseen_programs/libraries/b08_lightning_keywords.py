"""Keyword spotting on synthetic spectrograms with Lightning and a one-cycle schedule."""
import logging

import torch

torch.set_num_threads(1)
torch.manual_seed(6)

import lightning as L
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
MELS, FRAMES, WORDS = 20, 24, 6


def spectrograms(n, seed):
    """Each word is a rising or falling sweep in one of three bands, at a random onset."""
    g = torch.Generator().manual_seed(seed)
    word = torch.randint(0, WORDS, (n,), generator=g)
    band, rising = word // 2, word % 2
    onset = torch.randint(0, 10, (n,), generator=g)
    t = torch.arange(FRAMES)[None, :] - onset[:, None]
    inside = (t >= 0) & (t < 12)
    slope = torch.where(rising == 1, 0.5, -0.5)[:, None]
    centre = 4 + 6 * band[:, None] + slope * (t - 6)
    mel = torch.arange(MELS)[None, :, None]
    spec = torch.exp(-0.5 * (mel - centre[:, None, :]) ** 2) * inside[:, None, :]
    return spec + 0.6 * torch.randn(n, MELS, FRAMES, generator=g), word


class KeywordNet(L.LightningModule):
    def __init__(self, max_lr=0.05, width=24):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv1d(MELS, width, 5, padding=2), nn.GroupNorm(4, width), nn.ReLU(),
            nn.Conv1d(width, width, 5, padding=2), nn.GroupNorm(4, width), nn.ReLU(),
            nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(width, WORDS),
        )

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.net(x), y), on_epoch=True)

    def on_validation_epoch_end(self):
        lr = self.optimizers().param_groups[0]["lr"]
        print(f"epoch {self.current_epoch} lr {lr:.2e} "
              f"val {self.trainer.callback_metrics['val_loss']:.4f}")

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=self.hparams.max_lr, pct_start=0.3,
            total_steps=self.trainer.estimated_stepping_batches,
        )
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def main():
    train = DataLoader(TensorDataset(*spectrograms(1536, 1)), batch_size=64, shuffle=True)
    valid = DataLoader(TensorDataset(*spectrograms(384, 2)), batch_size=128)
    model = KeywordNet()
    trainer = L.Trainer(
        max_epochs=6, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )
    trainer.fit(model, train, valid)
    print(f"RESULT {trainer.callback_metrics['val_loss'].item():.4f}")


if __name__ == "__main__":
    main()
