"""Forecast the next reading of a meter from the last 24 readings."""
import torch
import torch.nn as nn

torch.manual_seed(1)
torch.set_num_threads(1)
WINDOW = 24


def series(n, gen):
    t = torch.arange(WINDOW + 1, dtype=torch.float32)[None]
    level = torch.randn(n, 1, generator=gen)
    trend = torch.randn(n, 1, generator=gen) * 0.05
    season = torch.rand(n, 1, generator=gen) * torch.sin(t * 0.52)
    y = level + trend * t + season + 0.05 * torch.randn(n, WINDOW + 1, generator=gen)
    return y[:, :-1, None], y[:, -1]


class Forecaster(nn.Module):
    def __init__(self, channels=1, hidden=32):
        super().__init__()
        self.scale = nn.LayerNorm(channels)
        self.rnn = nn.GRU(channels, hidden, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1))

    def forward(self, x):
        h, _ = self.rnn(self.scale(x))
        return self.head(h[:, -1]).squeeze(-1)


def epochs(n, gen):
    x, y = series(1024, gen)
    for _ in range(n):
        for idx in torch.randperm(len(x), generator=gen).split(64):
            yield x[idx], y[idx]


gen = torch.Generator().manual_seed(0)
model = Forecaster()
opt = torch.optim.Adam(model.parameters(), lr=6e-3)
for i, (x, y) in enumerate(epochs(6, gen)):
    opt.zero_grad()
    loss = nn.functional.smooth_l1_loss(model(x), y)
    loss.backward()
    opt.step()
    if i % 24 == 0:
        print("step", i, "loss", round(loss.item(), 4))

model.eval()
x, y = series(512, gen)
with torch.no_grad():
    print("RESULT", float((model(x) - y).pow(2).mean()))
