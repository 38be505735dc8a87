"""House energy demand with its uncertainty."""
import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(0)
torch.set_num_threads(1)


def houses(n):
    x = torch.randn(n, 6)
    mean = 2 * x[:, 0] - x[:, 1] * x[:, 2] + 0.5
    return x, mean + 0.2 * (1 + x[:, 3].abs()) * torch.randn(n)


class Demand(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.loc = nn.Linear(width, 1)
        self.scale = nn.Sequential(nn.Linear(width, 1), nn.Softplus())

    def forward(self, x):
        h = self.body(x)
        return Normal(self.loc(h), self.scale(h) + 1e-3)


def surprise(forecast, observed):
    return -forecast.log_prob(observed).mean()


model = Demand()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 120)
x, y = houses(1024)
for step in range(120):
    pick = torch.randint(0, len(x), (64,))
    loss = surprise(model(x[pick]), y[pick])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()

x, y = houses(1000)
with torch.no_grad():
    forecast = model(x)
    error = (forecast.mean.flatten() - y).abs().mean()
print("RESULT", error.item())
