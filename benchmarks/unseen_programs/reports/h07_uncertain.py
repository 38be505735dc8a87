"""Predictive spread from many passes with the noise left on."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


class Noisy(nn.Module):
    def __init__(self, width=128, p=0.1):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.fc1, self.fc2, self.out = nn.Linear(4, width), nn.Linear(width, width), nn.Linear(width, 1)
        self.p = p

    def forward(self, x):
        h = F.dropout(F.relu(self.fc1(self.norm(x))), self.p, training=True)
        h = F.dropout(F.relu(self.fc2(h)), self.p, training=True)
        return self.out(h).squeeze(1)


def readings(n, seed):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=gen) * torch.tensor([1.0, 3.0, 0.2, 1.0]) + 1
    z = (x - 1) / torch.tensor([1.0, 3.0, 0.2, 1.0])
    y = torch.sin(2 * z[:, 0]) + 0.7 * z[:, 1] - 0.4 * z[:, 2] * z[:, 3]
    return x, y + 0.2 * torch.randn(n, generator=gen)


@torch.no_grad()
def predictive(model, x, passes=40):
    model.eval()
    draws = torch.stack([model(x) for _ in range(passes)])
    return draws.mean(0), draws.var(0) + 0.04


def gaussian_nll(model, x, y):
    mean, var = predictive(model, x)
    return F.gaussian_nll_loss(mean, y, var).item()


def main(epochs=15):
    torch.manual_seed(60)
    x, y = readings(2500, 1)
    val = readings(800, 2)
    loader = DataLoader(TensorDataset(x, y), batch_size=50, shuffle=True)
    model = Noisy()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
    for epoch in range(epochs):
        model.train()
        total = 0.0
        for xb, yb in loader:
            loss = F.mse_loss(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        if epoch % 3 == 2:
            mean, _ = predictive(model, val[0])
            print(f"epoch {epoch} loss {total / len(loader):.4f} val mse {F.mse_loss(mean, val[1]).item():.4f}")
    mean, var = predictive(model, val[0])
    print("nll", gaussian_nll(model, *val))
    print("RESULT", F.mse_loss(mean, val[1]).item())


if __name__ == "__main__":
    main()
