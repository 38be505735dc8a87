import copy
import math

import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(21)


def two_moons(n):
    a = math.pi * torch.rand(n)
    up = torch.rand(n) < 0.5
    x = torch.where(up, torch.cos(a), 1 - torch.cos(a))
    y = torch.where(up, torch.sin(a), 0.5 - torch.sin(a))
    pts = torch.stack([x - 0.5, y - 0.25], 1) + 0.05 * torch.randn(n, 2)
    return pts * 1.5


class Schedule:
    def __init__(self, steps=40):
        self.steps = steps
        self.beta = torch.linspace(1e-3, 0.2, steps)
        self.alpha = 1 - self.beta
        self.abar = torch.cumprod(self.alpha, 0)

    def add_noise(self, x0, t, eps):
        a = self.abar[t].unsqueeze(1)
        return a.sqrt() * x0 + (1 - a).sqrt() * eps


class Denoiser(nn.Module):
    def __init__(self, width=128, freqs=8):
        super().__init__()
        self.register_buffer("freq", torch.exp(torch.linspace(0, 4, freqs)))
        self.net = nn.Sequential(nn.Linear(2 + 2 * freqs, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
                                 nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2))

    def forward(self, x, t):
        w = (t.float() / 40).unsqueeze(1) * self.freq
        return self.net(torch.cat([x, w.sin(), w.cos()], 1))


class EMA:
    def __init__(self, model, decay=0.9999):
        self.shadow = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay
        self.updates = 0

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        d = self.decay
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.mul_(d).add_(p, alpha=1 - d)


@torch.no_grad()
def sample(model, sch, n):
    x = torch.randn(n, 2)
    for i in reversed(range(sch.steps)):
        eps = model(x, torch.full((n,), i))
        x = (x - sch.beta[i] / (1 - sch.abar[i]).sqrt() * eps) / sch.alpha[i].sqrt()
        if i > 0:
            x = x + sch.beta[i].sqrt() * torch.randn_like(x)
    return x


def energy_distance(a, b):
    return (2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()).item()


def main():
    sch, model = Schedule(), Denoiser()
    ema = EMA(model)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    data = two_moons(8000)
    for step in range(2500):
        x0 = data[torch.randint(0, len(data), (256,))]
        t = torch.randint(0, sch.steps, (256,))
        eps = torch.randn_like(x0)
        loss = (model(sch.add_noise(x0, t, eps), t) - eps).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema.update(model)
        if step % 500 == 0:
            print(f"step {step} mse {loss.item():.4f}")
    gen = sample(ema.shadow, sch, 1000)
    print("RESULT", energy_distance(gen, two_moons(1000)))


main()
