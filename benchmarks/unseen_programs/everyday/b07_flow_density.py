"""Fit a normalizing flow to two-dimensional detector hits."""
import math

import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(7)


def sample_hits(n):
    """Three spiral arms with gaussian smearing."""
    arm = torch.randint(0, 3, (n,)).float()
    r = 0.3 + 2.2 * torch.rand(n)
    phi = 2 * math.pi * arm / 3 + 1.1 * r
    hits = torch.stack([r * torch.cos(phi), r * torch.sin(phi)], dim=1)
    return hits + 0.07 * torch.randn(n, 2)


class AffineCoupling(nn.Module):
    """Transforms the second coordinate given the first one."""

    def __init__(self, width=48):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
            nn.Linear(width, 2))
        nn.init.normal_(self.net[-1].weight, std=0.01)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        a, b = x[:, :1], x[:, 1:]
        log_s, t = self.net(a).chunk(2, dim=1)
        log_s = 2.0 * torch.tanh(log_s / 2.0)
        return torch.cat([a, b * torch.exp(log_s) + t], dim=1), log_s.squeeze(1)


class ActNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(dim))
        self.shift = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        return x * torch.exp(self.log_scale) + self.shift, self.log_scale.sum().expand(len(x))


class Flow(nn.Module):
    def __init__(self, n_layers=8):
        super().__init__()
        self.norm = ActNorm(2)
        self.couplings = nn.ModuleList([AffineCoupling()] * n_layers)

    def log_prob(self, x):
        z, log_det = self.norm(x)
        for coupling in self.couplings:
            z, ld = coupling(z)
            log_det = log_det + ld
            z = z.flip(1)
        base = -0.5 * (z ** 2).sum(1) - math.log(2 * math.pi)
        return base + log_det


def main():
    train, val = sample_hits(6000), sample_hits(1500)
    flow = Flow()
    optimizer = torch.optim.Adam(flow.parameters(), lr=5e-3)
    steps = 400
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    for step in range(steps):
        batch = train[torch.randint(0, len(train), (256,))]
        loss = -flow.log_prob(batch).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(flow.parameters(), 5.0)
        optimizer.step()
        scheduler.step()
        if step % 100 == 0:
            print(f"step {step} nll {loss.item():.4f}")
    with torch.no_grad():
        print(f"RESULT {-flow.log_prob(val).mean().item():.5f}")


if __name__ == "__main__":
    main()
