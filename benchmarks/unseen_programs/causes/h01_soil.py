"""Soil chemistry: three lab values per sample, many of them never measured (NaN in the table)."""
import torch
from torch import nn

torch.set_num_threads(1)


def table(n, gen):
    x = torch.randn(n, 12, generator=gen)
    full = torch.stack([x[:, :3].sum(1), torch.sin(2 * x[:, 3]) + x[:, 4], x[:, 5] * x[:, 6]], 1)
    y = full + 0.1 * torch.randn(n, 3, generator=gen)
    y[torch.rand(n, 3, generator=gen) < 0.6] = float("nan")
    x[torch.rand(n, 12, generator=gen) < 0.02] = float("nan")
    return x, y, full


def with_flags(x):
    return torch.cat([torch.nan_to_num(x, nan=0.0), torch.isnan(x).float()], 1)


def measured_only(pred, y):
    there = ~torch.isnan(y)
    diff = torch.where(there, y, pred.detach()) - pred
    per_column = diff.square().sum(0) / there.sum(0).clamp(min=1)
    return per_column.mean()


class SoilNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(24, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.heads = nn.ModuleList(nn.Linear(64, 1) for _ in range(3))

    def forward(self, x):
        h = self.trunk(with_flags(x))
        return torch.cat([head(h) for head in self.heads], 1)


def main():
    torch.manual_seed(61)
    gen = torch.Generator().manual_seed(61)
    x, y, _ = table(10000, gen)
    xv, _, full = table(1500, gen)
    net = SoilNet()
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    print(f"measured: {(~y.isnan()).float().mean():.2f}")
    for epoch in range(7):
        for idx in torch.randperm(len(x), generator=gen).split(100):
            loss = measured_only(net(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
        with torch.no_grad():
            error = (net(xv) - full).pow(2).mean().item()
        print(f"epoch {epoch} loss {loss.item():.4f} error {error:.4f}")
    print("RESULT", error)


main()
