import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 12, generator=g)
    w = torch.randn(12, generator=torch.Generator().manual_seed(7))
    y = torch.sin(x @ w * 0.6) + 0.3 * x[:, 0] * x[:, 1]
    return x, y.unsqueeze(1)


class Trainer:
    def __init__(self, model, train_loader, val, lr=3e-3, max_norm=1.0):
        self.model = model
        self.train_loader = train_loader
        self.val = val
        self.max_norm = max_norm
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        self.skipped = 0

    def train_epoch(self):
        self.model.train()
        total, n = 0.0, 0
        for x, y in self.train_loader:
            loss = F.smooth_l1_loss(self.model(x), y)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
            if not torch.isfinite(norm):
                self.skipped += 1
                continue
            self.optimizer.step()
            self.optimizer.zero_grad()
            total += loss.item()
            n += 1
        return total / max(n, 1)

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        x, y = self.val
        return F.mse_loss(self.model(x), y).item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=12)
    p.add_argument("--batch-size", type=int, default=64)
    args = p.parse_args()
    torch.manual_seed(3)
    torch.set_num_threads(1)
    x, y = make_data(2048, 1)
    x[1234, 5] = float("inf")
    loader = DataLoader(TensorDataset(x, y), batch_size=args.batch_size, shuffle=True)
    model = nn.Sequential(nn.Linear(12, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    t = Trainer(model, loader, make_data(512, 2))
    for epoch in range(args.epochs):
        tr = t.train_epoch()
        print(f"epoch {epoch:2d} train {tr:.4f} val {t.evaluate():.4f} skipped {t.skipped}")
    print(f"result: {t.evaluate():.5f}")


if __name__ == "__main__":
    main()
