"""Predict house prices from raw columns with Lightning, after a look at the untrained error."""
import logging

import torch

torch.set_num_threads(1)
torch.manual_seed(23)

import lightning as L
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
COLUMNS = ["area_m2", "year", "rooms", "distance_m", "income"]


def houses(n, seed):
    g = torch.Generator().manual_seed(seed)
    area = 40 + 160 * torch.rand(n, generator=g)
    year = 1920 + torch.randint(0, 100, (n,), generator=g).float()
    rooms = (area / 28 + torch.randn(n, generator=g)).round().clamp(min=1)
    distance = 200 + 12000 * torch.rand(n, generator=g) ** 2
    income = 20000 + 40000 * torch.rand(n, generator=g)
    log_price = (
        0.008 * area + 0.006 * (year - 1970) + 0.05 * rooms - 0.9 * (distance / 6000).sqrt()
        + 0.4 * torch.sin(income / 8000) + 0.05 * torch.randn(n, generator=g)
    )
    return torch.stack([area, year, rooms, distance, income], dim=1), log_price[:, None]


class PriceNet(L.LightningModule):
    """The first layer of the network standardises the raw columns."""

    def __init__(self, width=64, lr=5e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.BatchNorm1d(len(COLUMNS)), nn.Linear(len(COLUMNS), width), nn.BatchNorm1d(width),
            nn.ReLU(), nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Linear(width, 1),
        )

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.smooth_l1_loss(self(x), y)
        self.log("train_loss", loss, on_epoch=True, on_step=False)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_mae", (self(x) - y).abs().mean())

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch} "
              f"train {self.trainer.callback_metrics['train_loss']:.4f}")

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=1e-4)
        total = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)
        return {"optimizer": optimizer,
                "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


@torch.no_grad()
def mean_absolute_error(model, data):
    model.eval()
    x, y = data.tensors
    return (model(x) - y).abs().mean().item()


def main():
    train, valid = TensorDataset(*houses(1920, 1)), TensorDataset(*houses(500, 2))
    model = PriceNet()
    print(f"error before training {mean_absolute_error(model, valid):.3f}")
    trainer = L.Trainer(
        max_epochs=6, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )
    trainer.fit(
        model, DataLoader(train, batch_size=64, shuffle=True), DataLoader(valid, batch_size=500)
    )
    print(f"RESULT {mean_absolute_error(model, valid):.4f}")


if __name__ == "__main__":
    main()
