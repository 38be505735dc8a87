"""Recognise types of card fraud in imbalanced transactions with a weighted sampler."""
import logging

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.set_num_threads(1)
torch.manual_seed(2929)
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
log = logging.getLogger("fraud")

KINDS = ["none", "stolen", "cloned", "friendly", "takeover"]
SHARE = torch.tensor([0.72, 0.10, 0.08, 0.06, 0.04])
FIELDS = 14


def transactions(n):
    g = torch.Generator().manual_seed(21)
    centre = 1.3 * torch.randn(len(KINDS), FIELDS, generator=g)
    warp = torch.randn(FIELDS, FIELDS, generator=g) / FIELDS ** 0.5
    kind = torch.multinomial(SHARE, n, replacement=True)
    x = centre[kind] + 1.2 * torch.randn(n, FIELDS)
    return x + torch.tanh(x @ warp), kind


class FraudNet(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.norm = nn.LayerNorm(FIELDS)
        self.a = nn.Linear(FIELDS, width)
        self.b = nn.Linear(width, width)
        self.c = nn.Linear(width, len(KINDS))
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        h = F.relu(self.a(self.norm(x)))
        h = h + F.relu(self.b(self.drop(h)))
        return self.c(h)


def balanced_loader(x, kind, batch_size):
    counts = torch.bincount(kind, minlength=len(KINDS))
    weights = 1.0 / counts.float()
    log.info("counts %s", dict(zip(KINDS, counts.tolist())))
    sampler = WeightedRandomSampler(weights, num_samples=len(kind), replacement=True)
    return DataLoader(TensorDataset(x, kind), batch_size=batch_size, sampler=sampler)


@torch.no_grad()
def balanced_error(model, x, kind):
    model.eval()
    guess = model(x).argmax(1)
    model.train()
    recalls = [(guess[kind == k] == k).float().mean() for k in range(len(KINDS))]
    return 1 - torch.stack(recalls).mean().item()


def main():
    x, kind = transactions(4000)
    val_x, val_kind = transactions(1500)
    loader = balanced_loader(x, kind, batch_size=64)
    model = FraudNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(4):
        total = 0.0
        for bx, bk in loader:
            loss = F.cross_entropy(model(bx), bk)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += loss.item()
        log.info("epoch %d loss %.4f balanced error %.4f", epoch, total / len(loader),
                 balanced_error(model, val_x, val_kind))
    print(f"RESULT {balanced_error(model, val_x, val_kind):.5f}")


if __name__ == "__main__":
    main()
