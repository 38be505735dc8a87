"""Predict the failure class and remaining capacity of battery cells from cycling features."""
import logging

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(31)
logging.basicConfig(level=logging.INFO, format="%(message)s")
log = logging.getLogger("cells")

FEATURES, CLASSES, EPOCHS = 20, 4, 8


def make_cells(n):
    latent = torch.randn(n, 5)
    mix = torch.randn(5, FEATURES, generator=torch.Generator().manual_seed(3))
    x = torch.tanh(latent @ mix * 0.6) + 0.15 * torch.randn(n, FEATURES)
    mode = (latent[:, 0] > 0).long() * 2 + (latent[:, 1] * latent[:, 2] > 0).long()
    capacity = 0.8 * latent[:, 3] + 0.5 * torch.sin(2 * latent[:, 4]) - 0.4 * latent[:, 0] ** 2
    return x, mode, capacity + 0.05 * torch.randn(n)


class CellNet(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(FEATURES, width), nn.SiLU(), nn.LayerNorm(width),
            nn.Linear(width, width), nn.SiLU(), nn.LayerNorm(width))
        self.mode = nn.Linear(width, CLASSES)
        self.capacity = nn.Sequential(nn.Linear(width, 32), nn.SiLU(), nn.Linear(32, 1))

    def forward(self, x):
        h = self.trunk(x)
        return self.mode(h), self.capacity(h).squeeze(-1)


class Trainer:
    def __init__(self, model, lr=0.05):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        self.scaler = torch.amp.GradScaler("cpu")

    def train_epoch(self, loader):
        total_mode = total_cap = 0.0
        for x, mode, capacity in loader:
            self.optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.float16):
                logits, pred = self.model(x)
            loss_mode = F.cross_entropy(logits.float(), mode)
            loss_cap = F.mse_loss(pred.float(), capacity)
            self.scaler.scale(loss_mode).backward(retain_graph=True)
            loss_cap.backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            total_mode += loss_mode.item()
            total_cap += loss_cap.item()
        return total_mode / len(loader), total_cap / len(loader)

    @torch.no_grad()
    def validate(self, x, mode, capacity):
        self.model.eval()
        logits, pred = self.model(x)
        self.model.train()
        return F.cross_entropy(logits, mode).item(), F.mse_loss(pred, capacity).item()


def main():
    train, val = make_cells(2000), make_cells(500)
    loader = DataLoader(TensorDataset(*train), batch_size=64, shuffle=True, drop_last=True)
    trainer = Trainer(CellNet())
    for epoch in range(EPOCHS):
        mode_loss, cap_loss = trainer.train_epoch(loader)
        val_mode, val_cap = trainer.validate(*val)
        log.info("epoch %d mode %.4f capacity %.4f | val %.4f %.4f",
                 epoch, mode_loss, cap_loss, val_mode, val_cap)
    print(f"RESULT {val_mode + val_cap:.5f}")


if __name__ == "__main__":
    main()
