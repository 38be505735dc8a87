"""Multi-output regression in float16 with loss scaling."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


@dataclass
class Config:
    epochs: int = 10
    batch_size: int = 64
    lr: float = 2e-3
    hidden: int = 48
    clip: float = 200.0


def make_dataset(n=900):
    g = torch.Generator().manual_seed(11)
    x = torch.randn(n, 10, generator=g)
    w = torch.randn(10, 6, generator=g)
    y = 12.0 * torch.tanh(x @ w / 2) + 6.0 * x[:, :6] + 8.0
    return TensorDataset(x, y)


class Regressor(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(10, cfg.hidden), nn.SiLU(),
            nn.Linear(cfg.hidden, cfg.hidden), nn.SiLU(),
        )
        self.out = nn.Linear(cfg.hidden, 6)

    def forward(self, x):
        return self.out(self.body(x))


def squared_error(pred, y):
    # summed over the batch and the outputs, as in the original implementation
    return (pred.float() - y).pow(2).sum()


def train_one_epoch(model, loader, optimizer, cfg):
    model.train()
    scaler = torch.amp.GradScaler("cpu")
    running, seen = 0.0, 0
    for x, y in loader:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = squared_error(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
        scaler.step(optimizer)
        scaler.update()
        running += loss.item()
        seen += y.numel()
    return running / seen


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    total, seen = 0.0, 0
    for x, y in loader:
        with torch.autocast("cpu", dtype=torch.float16):
            total += squared_error(model(x), y).item()
        seen += y.numel()
    return total / seen


def main(cfg):
    torch.set_num_threads(1)
    torch.manual_seed(5)
    train_set, val_set = random_split(make_dataset(), [750, 150])
    train_loader = DataLoader(train_set, batch_size=cfg.batch_size, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=150)
    model = Regressor(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    for epoch in range(cfg.epochs):
        train_loss = train_one_epoch(model, train_loader, optimizer, cfg)
        print(f"[{epoch:02d}] train mse {train_loss:.3f}  val mse {evaluate(model, val_loader):.3f}")
    print("RESULT", evaluate(model, val_loader))


if __name__ == "__main__":
    main(Config())
