"""Day-ahead electricity demand, updated every time a new block of meter readings arrives."""
import math
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(3)


class DemandForecaster:
    """scikit-learn flavoured wrapper: partial_fit on each delivery, predict at any time."""

    def __init__(self, n_features, lr=0.001, momentum=0.98):
        self.lr, self.momentum = lr, momentum
        self.net = nn.Sequential(nn.Linear(n_features, 24), nn.Tanh(), nn.Linear(24, 1))
        self.loss = nn.MSELoss()

    def partial_fit(self, X, y):
        opt = torch.optim.SGD(self.net.parameters(), lr=self.lr, momentum=self.momentum, nesterov=True)
        self.net.train()
        for xb, yb in zip(X.split(64), y.split(64)):
            opt.zero_grad()
            loss = self.loss(self.net(xb).squeeze(1), yb)
            loss.backward()
            opt.step()
        return loss.item()

    def predict(self, X):
        self.net.eval()
        with torch.no_grad():
            return self.net(X).squeeze(1)


def meter_block(hours, start):
    t = torch.arange(start, start + hours, dtype=torch.float32)
    day, week = 2 * math.pi * t / 24, 2 * math.pi * t / 168
    temp = 12 + 5 * torch.sin(day - 2.0) + 6 * torch.randn(hours)
    feats = torch.stack([day.sin(), day.cos(), (2 * day).sin(), (2 * day).cos(),
                         week.sin(), week.cos(), (temp - 12) / 9], 1)
    demand = (day - 1.0).sin() + 0.6 * (2 * day).cos() + 0.5 * week.cos() * day.sin() \
        + 0.8 * ((temp - 12) / 9) ** 2
    order = torch.randperm(hours)
    return feats[order], (demand + 0.05 * torch.randn(hours))[order]


def main():
    model = DemandForecaster(7)
    clock = 0
    for delivery in range(400):
        X, y = meter_block(128, clock)
        clock += 128
        fit = model.partial_fit(X, y)
        if delivery % 80 == 0:
            print(f"delivery {delivery:3d}  mse {fit:.4f}")
    X, y = meter_block(2000, clock)
    print("RESULT", float(((model.predict(X) - y) ** 2).mean()))


main()
