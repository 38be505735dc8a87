"""Event counts per sensor window, Poisson regression with a positive rate."""
import math

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


class PositiveRate(nn.Module):
    """Smooth ramp; becomes the identity for large inputs."""

    def __init__(self, threshold=20.0):
        super().__init__()
        self.threshold = threshold

    def forward(self, x):
        return torch.where(x > self.threshold, x, torch.log1p(torch.exp(x)))


class CountModel(nn.Module):
    def __init__(self, n_features=6, width=48):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(n_features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.score = nn.Linear(width, 1)
        self.rate = PositiveRate()

    def forward(self, x):
        return self.rate(self.score(self.hidden(x))).squeeze(-1) + 1e-4


def sensor_windows(n, seed):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=gen)
    burst = torch.rand(n, generator=gen) < 0.02
    x[burst, 0] = 25 + 45 * torch.rand(int(burst.sum()), generator=gen)
    rate = 1.0 + x[:, 1].abs() + 2.5 * x[:, 0].clamp(min=0) + 0.5 * torch.relu(x[:, 2] + x[:, 3])
    return x, torch.poisson(rate, generator=gen)


def deviance(rate, count):
    log_ratio = torch.where(count > 0, torch.log(count.clamp(min=1) / rate), torch.zeros_like(rate))
    return 2 * (count * log_ratio - (count - rate)).mean()


@torch.no_grad()
def validate(model, x, y):
    model.eval()
    value = deviance(model(x), y).item()
    model.train()
    return value


def main(epochs=8):
    torch.manual_seed(15)
    x, y = sensor_windows(4000, 1)
    xv, yv = sensor_windows(1500, 2)
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    model = CountModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    criterion = nn.PoissonNLLLoss(log_input=False)
    best = math.inf
    for epoch in range(epochs):
        total = 0.0
        for xb, yb in loader:
            loss = criterion(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.item()
        last = validate(model, xv, yv)
        best = min(best, last)
        print(f"epoch {epoch} loss {total / len(loader):.4f} deviance {last:.4f} best {best:.4f}")
    print("RESULT", last)


if __name__ == "__main__":
    main()
