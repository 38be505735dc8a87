"""Low-rank adapters (second factor starts at zero) on a frozen network for a shifted task."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(15)
x = torch.randn(900, 12)
old = torch.tanh(x[:, :4].sum(1))
new = torch.tanh(x[:, 2:6].sum(1)) + 0.5 * x[:, 7]


class Adapter(nn.Module):
    def __init__(self, base, rank):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features ** 0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, h):
        return self.base(h) + h @ self.down.T @ self.up.T


def fit(net, target, steps, lr):
    opt = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=lr)
    for step in range(steps):
        rows = torch.randint(0, 700, (64,))
        loss = nn.functional.mse_loss(net(x[rows]).squeeze(1), target[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


net = nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
print("pre-training", fit(net, old, 60, 5e-3))
for i in (0, 2, 4):
    net[i] = Adapter(net[i], rank=4)
print("adaptation", fit(net, new, 90, 1e-2))
with torch.no_grad():
    print("RESULT", nn.functional.mse_loss(net(x[700:]).squeeze(1), new[700:]).item())
