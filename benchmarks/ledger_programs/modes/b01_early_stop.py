import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


class Fitter:
    def __init__(self, model, lr=5e-3, patience=60):
        self.model = model
        self.opt = torch.optim.Adam(model.parameters(), lr=lr)
        self.best = float("inf")
        self.patience = patience
        self.bad = 0

    def check(self, x, y):
        self.model.eval()
        with torch.no_grad():
            v = F.cross_entropy(self.model(x), y).item()
        if v >= self.best:
            self.bad += 1
            return v
        self.best = v
        self.bad = 0
        self.model.train()
        return v

    def fit(self, train, val, epochs):
        self.model.train()
        x, y = train
        for ep in range(epochs):
            for idx in torch.randperm(len(x)).split(25):
                self.opt.zero_grad()
                loss = F.cross_entropy(self.model(x[idx]), y[idx])
                loss.backward()
                self.opt.step()
            v = self.check(*val)
            if ep % 10 == 0:
                print(f"{ep:3d} train {loss.item():.3f} val {v:.3f}")
            if self.bad > self.patience:
                break
        return v


w = torch.randn(20, 2)


def make(n):
    x = torch.randn(n, 20)
    return x, (x @ w + 2.0 * torch.randn(n, 2)).argmax(-1)


model = nn.Sequential(nn.Linear(20, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.6),
                      nn.Linear(128, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.6), nn.Linear(128, 2))
print("result:", Fitter(model).fit(make(200), make(1000), 40))
