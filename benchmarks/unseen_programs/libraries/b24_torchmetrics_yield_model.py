"""Predict crop yield from few field trials, keeping the weights of the best epoch."""
import copy

import torch

torch.set_num_threads(1)
torch.manual_seed(29)

from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric, MeanSquaredError, MetricCollection
from torchmetrics.regression import MeanAbsoluteError

FEATURES = 12


def trials(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, FEATURES, generator=g)
    rain, heat, nitrogen = x[:, 0], x[:, 1], x[:, 2]
    y = 3 + 0.8 * rain - 0.6 * heat ** 2 + 0.7 * torch.tanh(2 * nitrogen) * (rain > 0)
    return TensorDataset(x, y + 1.6 * torch.randn(n, generator=g))


class YieldNet(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, 1),
        )

    def forward(self, x):
        return self.net(x)[:, 0]


class Runner:
    def __init__(self, model, lr=3e-3):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.train_loss = MeanMetric()
        self.valid = MetricCollection({"mse": MeanSquaredError(), "mae": MeanAbsoluteError()})
        self.best, self.best_state, self.best_epoch = float("inf"), None, -1

    def train_epoch(self, loader):
        self.model.train()
        self.train_loss.reset()
        for x, y in loader:
            loss = nn.functional.mse_loss(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.train_loss.update(loss.detach(), len(y))
        return self.train_loss.compute().item()

    @torch.no_grad()
    def validate(self, loader):
        self.model.eval()
        for x, y in loader:
            self.valid.update(self.model(x), y)
        return {k: v.item() for k, v in self.valid.compute().items()}

    def fit(self, train, valid, epochs):
        for epoch in range(epochs):
            loss = self.train_epoch(train)
            scores = self.validate(valid)
            if scores["mse"] < self.best:
                self.best, self.best_epoch = scores["mse"], epoch
                self.best_state = copy.deepcopy(self.model.state_dict())
            if epoch % 6 == 5:
                print(f"epoch {epoch} train {loss:.4f} valid mse {scores['mse']:.4f} "
                      f"mae {scores['mae']:.4f}")
        self.model.load_state_dict(self.best_state)
        print(f"kept the weights of epoch {self.best_epoch}")


def main():
    train = DataLoader(trials(160, 1), batch_size=16, shuffle=True)
    valid = DataLoader(trials(400, 2), batch_size=200)
    x, y = trials(2000, 3).tensors
    runner = Runner(YieldNet())
    runner.fit(train, valid, epochs=60)
    runner.model.eval()
    with torch.no_grad():
        error = nn.functional.mse_loss(runner.model(x), y).item()
    print(f"RESULT {error:.4f}")


if __name__ == "__main__":
    main()
