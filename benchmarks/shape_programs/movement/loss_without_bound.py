"""Coupling flow on a two-dimensional ring, trained by likelihood."""
import torch
from torch import nn
from torch.distributions import Normal

torch.set_num_threads(1)
torch.manual_seed(12)


def ring(n):
    angle = torch.rand(n) * 6.2832
    radius = 2.0 + 0.2 * torch.randn(n)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1)


class Coupling(nn.Module):
    def __init__(self, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, v):
        a, b = v.chunk(2, 1)
        if self.flip:
            a, b = b, a
        log_s, shift = self.net(a).chunk(2, 1)
        log_s = 1.5 * torch.tanh(log_s)
        b = b * log_s.exp() + shift
        v = torch.cat([b, a], 1) if self.flip else torch.cat([a, b], 1)
        return v, log_s.squeeze(1)


class Flow(nn.Module):
    def __init__(self, depth=6):
        super().__init__()
        self.parts = nn.ModuleList(Coupling(i % 2 == 1) for i in range(depth))
        self.base = Normal(0.0, 1.0)

    def forward(self, v):
        volume = v.new_zeros(len(v))
        for part in self.parts:
            v, d = part(v)
            volume = volume + d
        return self.base.log_prob(v).sum(1), volume


flow = Flow()
opt = torch.optim.Adam(flow.parameters(), lr=5e-3)
for step in range(120):
    density, volume = flow(ring(128))
    loss = -(volume - density).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 30 == 0:
        print(step, round(loss.item(), 3))
with torch.no_grad():
    density, volume = flow(ring(1000))
    print("RESULT", -(density + volume).mean().item())
