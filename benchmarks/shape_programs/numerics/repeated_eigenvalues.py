"""Estimate the turn between two scans of an object as a rotation matrix."""
import torch
from torch import nn

torch.manual_seed(17)
torch.set_num_threads(1)
body = torch.randn(10, 3)


def nearest_rotation(m):
    u, _, v = m.svd()
    sign = torch.det(u @ v.mT).sign()
    flip = torch.stack([torch.ones_like(sign), torch.ones_like(sign), sign], -1)
    return (u * flip.unsqueeze(-2)) @ v.mT


def turns(n):
    skew = torch.zeros(n, 3, 3)
    angle = 0.9 * torch.randn(n, 3)
    skew[:, 0, 1], skew[:, 0, 2], skew[:, 1, 2] = angle.unbind(1)
    turn = torch.matrix_exp(skew - skew.mT)
    scan = body @ turn.mT + 0.05 * torch.randn(n, 10, 3)
    return scan.flatten(1), turn


class TurnNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(30, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU())
        self.last = nn.Linear(96, 9)
        nn.init.zeros_(self.last.weight)
        self.last.bias.data = torch.eye(3).flatten()

    def forward(self, scan):
        return nearest_rotation(self.last(self.body(scan)).view(-1, 3, 3))


net = TurnNet()
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
for step in range(120):
    scan, turn = turns(96)
    loss = (net(scan) - turn).square().sum((1, 2)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 30 == 0:
        print(step, loss.item())
scan, turn = turns(500)
with torch.no_grad():
    out = net.last(net.body(scan)).view(-1, 3, 3).nan_to_num()
    print("RESULT", (nearest_rotation(out) - turn).square().sum((1, 2)).mean().item())
