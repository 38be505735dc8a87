import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(5)


class LowRank(nn.Module):
    def __init__(self, base, r=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(r, base.in_features) / base.in_features ** 0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, r))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


mu = torch.randn(6, 24)
turn = torch.linalg.qr(torch.randn(24, 24))[0]
turn = torch.linalg.qr(torch.eye(24) + 0.15 * turn)[0]


def draw(n, moved):
    y = torch.randint(0, 6, (n,))
    x = mu[y] + 0.9 * torch.randn(n, 24)
    return (x @ turn if moved else x), (5 - y if moved else y)


def fit(net, params, data, steps, lr):
    opt = torch.optim.Adam(params, lr=lr)
    x, y = data
    for step in range(steps):
        i = torch.randint(0, len(x), (64,))
        loss = F.cross_entropy(net(x[i]), y[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 100 == 0:
            print(step, f"{loss.item():.4f}")


net = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.BatchNorm1d(64), nn.Linear(64, 6))
fit(net, net.parameters(), draw(3000, False), 300, 3e-3)
net.eval().requires_grad_(False)
net[0], net[3] = LowRank(net[0]), LowRank(net[3], 5)
fit(net, [p for p in net.parameters() if p.requires_grad], draw(3000, True), 500, 5e-3)
xv, yv = draw(1000, True)
with torch.no_grad():
    print("RESULT", (net(xv).argmax(1) != yv).float().mean().item())
