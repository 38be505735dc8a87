"""Forecast sensor readings with gaps in Lightning; batches without any reading are passed over."""
import logging

import torch

torch.set_num_threads(1)
torch.manual_seed(34)

import lightning as L
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def sensors(n, seed, length=30, outages=True):
    """Slow waves with missing readings (NaN); in an outage a whole series is missing."""
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(length + 1)
    period = 10 + 10 * torch.rand(n, 1, generator=g)
    wave = torch.sin(2 * torch.pi * t / period + 6.28 * torch.rand(n, 1, generator=g))
    wave = wave + 0.05 * torch.randn(n, length + 1, generator=g)
    if outages:
        wave[torch.rand(n, length + 1, generator=g) < 0.2] = float("nan")
        wave[torch.rand(n, generator=g) < 0.3] = float("nan")
    return wave


class GapForecaster(L.LightningModule):
    def __init__(self, hidden=32, lr=1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.gru = nn.GRU(2, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)
        self.passed_over = 0

    def forward(self, wave):
        seen = ~wave.isnan()
        inputs = torch.stack([wave.nan_to_num(0.0), seen.float()], dim=-1)
        return self.out(self.gru(inputs)[0]).squeeze(-1)

    def training_step(self, batch, batch_idx):
        (wave,) = batch
        target = wave[:, 1:]
        known = ~target.isnan()
        if not known.any():
            self.passed_over += 1
            return None
        error = self(wave[:, :-1]) - target
        loss = torch.where(known, error, torch.zeros_like(error)).pow(2).sum() / known.sum()
        self.log("loss", loss, on_step=True, on_epoch=False)
        return loss

    def on_before_optimizer_step(self, optimizer):
        for p in self.parameters():
            if p.grad is not None:
                p.grad.nan_to_num_(0.0)

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch} loss {self.trainer.callback_metrics['loss']:.4f} "
              f"batches passed over {self.passed_over}")

    def configure_optimizers(self):
        optimizer = torch.optim.Adamax(self.parameters(), lr=self.hparams.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2)
        return [optimizer], [schedule]


def main():
    loader = DataLoader(TensorDataset(sensors(600, 1)), batch_size=4, shuffle=True)
    model = GapForecaster()
    trainer = L.Trainer(
        max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=4,
        gradient_clip_val=1.0, limit_train_batches=120,
    )
    trainer.fit(model, loader)
    wave = sensors(300, 2, outages=False)
    model.eval()
    with torch.no_grad():
        error = (model(wave[:, :-1]) - wave[:, 1:])[:, 10:].pow(2).mean().item()
    print(f"RESULT {error:.5f}")


if __name__ == "__main__":
    main()
