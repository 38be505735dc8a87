"""Forecast electricity load with rare spikes by a GRU in Lightning, logging gradient norms."""
import logging

import torch

torch.set_num_threads(1)
torch.manual_seed(31)

import lightning as L
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def load_curves(n, seed, length=36, spikes=True):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(length + 1)
    phase = 24 * torch.rand(n, 1, generator=g)
    daily = torch.sin(2 * torch.pi * (t + phase) / 24)
    drift = torch.cumsum(0.05 * torch.randn(n, length + 1, generator=g), dim=1)
    y = daily + drift
    if spikes:
        hit = torch.rand(n, length + 1, generator=g) < 0.002
        y = y + hit * 150 * torch.rand(n, length + 1, generator=g)
    return y[:, :-1, None], y[:, 1:, None]


class LoadForecaster(L.LightningModule):
    def __init__(self, hidden=32, lr=0.05):
        super().__init__()
        self.save_hyperparameters()
        self.gru = nn.GRU(1, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)
        self.norms = []

    def forward(self, x):
        h, _ = self.gru(x)
        return x + self.out(h)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_gradient_clipping(
        self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None
    ):
        grads = [p.grad.norm() for p in self.parameters() if p.grad is not None]
        self.norms.append(torch.stack(grads).norm().item())

    def on_train_epoch_end(self):
        recent = torch.tensor(self.norms[-20:])
        loss = self.trainer.callback_metrics["train_loss"]
        print(f"epoch {self.current_epoch} loss {loss:.4f} gradient norm median "
              f"{recent.median():.3f} max {recent.max():.3f}")

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.max_epochs)
        return [optimizer], [schedule]


def main():
    loader = DataLoader(TensorDataset(*load_curves(640, 1)), batch_size=32, shuffle=True)
    model = LoadForecaster()
    trainer = L.Trainer(
        max_epochs=6, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=0.5,
    )
    trainer.fit(model, loader)
    x, y = load_curves(400, 2, spikes=False)
    model.eval()
    with torch.no_grad():
        error = nn.functional.mse_loss(model(x), y).item()
    print(f"RESULT {error:.5f}")


if __name__ == "__main__":
    main()
