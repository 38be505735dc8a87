import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(181)


class Adapted(nn.Module):
    """A fixed linear layer with a small learned change, folded in for evaluations."""

    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features ** 0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        self.folded = None

    def train(self, mode=True):
        with torch.no_grad():
            if mode and self.folded is not None:
                self.base.weight.copy_(self.folded)
                self.folded = None
            elif not mode and self.folded is None:
                self.folded = self.base.weight.clone()
                self.base.weight.add_(self.up @ self.down)
        return super().train(mode)

    def forward(self, x):
        out = self.base(x)
        return out if self.folded is not None else out + x @ self.down.T @ self.up.T


def stars(n, tilt):
    x = torch.randn(n, 12)
    return x, (torch.sin(x[:, 0] + tilt * x[:, 1]) + 0.5 * x[:, 2])[:, None]


def fit(net, data, test, epochs, lr):
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=lr)
    for epoch in range(epochs):
        net.train()
        for index in torch.randperm(len(data[0])).split(40):
            loss = F.mse_loss(net(data[0][index]), data[1][index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            error = F.mse_loss(net(test[0]), test[1]).item()
        print(f"epoch {epoch} error {error:.4f}")
    return error


first, last = nn.Linear(12, 64), nn.Linear(64, 1)
fit(nn.Sequential(first, nn.Tanh(), last), stars(800, 0.0), stars(300, 0.0), 3, 1e-2)
net = nn.Sequential(Adapted(first), nn.Tanh(), Adapted(last, rank=1))
print("RESULT", fit(net, stars(800, 0.8), stars(300, 0.8), 5, 1e-2))
