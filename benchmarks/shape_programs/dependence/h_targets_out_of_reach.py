"""House prices in thousands; the net ends in tanh and the loss works on the scaled price."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
gen = torch.Generator().manual_seed(2)
X = torch.rand(900, 6, generator=gen)
price = 120 + 300 * X[:, 0] * X[:, 1] + 150 * X[:, 2] ** 2 - 60 * X[:, 3]
price = price + 4 * torch.randn(900, generator=gen)
LOW, HIGH = float(price[:700].min()) - 10, float(price[:700].max()) + 10


def squash(p):
    return 2 * (p - LOW) / (HIGH - LOW) - 1


def unsquash(z):
    return (z + 1) / 2 * (HIGH - LOW) + LOW


model = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1), nn.Tanh())
opt = torch.optim.Adam(model.parameters(), lr=4e-3)
loader = DataLoader(TensorDataset(X[:700], price[:700]), 50, shuffle=True)
for epoch in range(10):
    for x, p in loader:
        loss = nn.functional.mse_loss(model(x).squeeze(1), squash(p))
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
model.eval()
with torch.no_grad():
    print("RESULT", float((unsquash(model(X[700:]).squeeze(1)) - price[700:]).abs().mean()))
