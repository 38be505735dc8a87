# Energy model of a ring in the plane, trained with short Langevin chains.
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))

    def forward(self, x):
        return self.net(x)[:, 0]


class Chains:
    def __init__(self, n, steps=8, size=0.15):
        self.x = 4 * torch.rand(n, 2) - 2
        self.steps, self.size = steps, size

    def advance(self, energy):
        x = self.x.clone().requires_grad_()
        for _ in range(self.steps):
            energy(x).sum().backward()
            with torch.no_grad():
                x += -0.5 * self.size * x.grad.clamp(-2, 2) + self.size * 0.5 * torch.randn_like(x)
                x.clamp_(-2, 2)
            x.grad = None
        fresh = torch.rand(len(x), 1) < 0.5
        self.x = torch.where(fresh, 4 * torch.rand(len(x), 2) - 2, x.detach())
        return self.x


def ring(n):
    angle = torch.rand(n) * 6.2832
    radius = 1.2 + 0.08 * torch.randn(n)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1)


energy = Energy()
opt = torch.optim.Adam(energy.parameters(), lr=1e-2)
chains = Chains(96)
for step in range(150):
    opt.zero_grad()
    fake = chains.advance(energy)
    high, low = energy(fake), energy(ring(96))
    loss = low.mean() - high.mean() + 0.02 * (low ** 2 + high ** 2).mean()
    loss.backward()
    opt.step()
    if step % 30 == 0:
        print(step, round(loss.item(), 4))
with torch.no_grad():
    good, other = energy(ring(500)), energy(4 * torch.rand(500, 2) - 2)
    print("RESULT", (good[:, None] > other[None]).float().mean().item())
