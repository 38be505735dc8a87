"""Next value of a station from the last readings of all stations (attention over stations and lags)."""
import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
STATIONS, LAGS, DIM = 8, 6, 32


def simulate(n, seed):
    g = torch.Generator().manual_seed(seed)
    link = torch.eye(STATIONS) * 0.5 + 0.45 * torch.eye(STATIONS).roll(1, 0)
    x = torch.zeros(n + LAGS + 1, STATIONS)
    for t in range(1, len(x)):
        x[t] = torch.tanh(x[t - 1] @ link * 1.3) + 0.35 * torch.randn(STATIONS, generator=g)
    win = x.unfold(0, LAGS + 1, 1)[:n]
    clean = torch.tanh(win[..., -2] @ link * 1.3)
    return win[..., :LAGS], win[..., -1], clean


class Layer(nn.Module):
    def __init__(self, dim, heads, drop):
        super().__init__()
        self.heads, self.drop = heads, drop
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(0.05), nn.Linear(2 * dim, dim))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, dropout_p=self.drop)
        x = x + self.proj(a.transpose(1, 2).flatten(2))
        return x + self.ff(self.norm2(x))


class Forecaster(nn.Module):
    def __init__(self, drop=0.15):
        super().__init__()
        self.inp = nn.Linear(LAGS, DIM)
        self.station = nn.Parameter(0.5 * torch.randn(STATIONS, DIM))
        self.layers = nn.Sequential(*[Layer(DIM, 4, drop) for _ in range(2)])
        self.out = nn.Linear(DIM, 1)

    def forward(self, x):
        return self.out(self.layers(self.inp(x) + self.station)).squeeze(-1)


def main():
    torch.manual_seed(33)
    x, y, _ = simulate(5000, 5)
    xv, _, clean = simulate(1000, 6)
    model = Forecaster()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 4e-3, total_steps=8 * 79)
    for epoch in range(8):
        model.train()
        for idx in torch.randperm(len(x)).split(64):
            loss = F.mse_loss(model(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
        model.eval()
        with torch.no_grad():
            valid = F.mse_loss(model(xv), clean).item()
        print(f"epoch {epoch}: train {loss.item():.4f} valid {valid:.4f}")
    print("RESULT", valid)


main()
