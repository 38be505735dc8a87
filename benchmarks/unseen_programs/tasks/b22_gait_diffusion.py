"""Trains a denoising diffusion model of gait cycles in bfloat16."""
import math

import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(113)

POINTS, STEPS_T = 32, 100


def gaits(n, gen):
    t = torch.linspace(0, 2 * math.pi, POINTS)
    stride = 1.0 + 0.2 * torch.randn(n, 1, generator=gen)
    lag = 0.4 * torch.randn(n, 1, generator=gen)
    swing = 0.5 * torch.rand(n, 1, generator=gen)
    return stride * torch.sin(t + lag) + swing * torch.sin(2 * t + 2 * lag)


class Noise:
    def __init__(self):
        beta = torch.linspace(1e-3, 0.08, STEPS_T)
        self.keep = torch.cumprod(1 - beta, 0)

    def add(self, x, t, eps):
        k = self.keep[t].unsqueeze(-1)
        return k.sqrt() * x + (1 - k).sqrt() * eps


class TimeFeatures(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.dim = dim
        self.proj = nn.Sequential(nn.Linear(dim, hidden), nn.SiLU())

    def forward(self, t):
        rate = torch.exp(-math.log(1000.0) * torch.arange(self.dim // 2) / (self.dim // 2))
        angle = t.unsqueeze(-1) * rate
        features = torch.cat([angle.sin(), angle.cos()], dim=-1)
        return self.proj(features)


class Denoiser(nn.Module):
    def __init__(self, hidden=96):
        super().__init__()
        self.time = TimeFeatures(16, hidden)
        self.enter = nn.Linear(POINTS, hidden)
        self.mid = nn.ModuleList([nn.Linear(hidden, hidden) for _ in range(2)])
        self.leave = nn.Linear(hidden, POINTS)

    def forward(self, x, t):
        h = self.enter(x) + self.time(t)
        for layer in self.mid:
            h = h + layer(nn.functional.silu(h))
        return self.leave(h)


def loss_on(net, noise, x, gen, dtype):
    t = torch.randint(0, STEPS_T, (len(x),), generator=gen)
    eps = torch.randn(x.shape, generator=gen)
    pred = net(noise.add(x, t, eps).to(dtype), t)
    return (pred.float() - eps).pow(2).mean()


def main(dtype=torch.bfloat16):
    gen = torch.Generator().manual_seed(2)
    data, held_out = gaits(2000, gen), gaits(500, gen)
    noise = Noise()
    net = Denoiser().to(dtype)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3, eps=1e-6)
    for step in range(300):
        pick = torch.randint(0, len(data), (128,), generator=gen)
        loss = loss_on(net, noise, data[pick], gen, dtype)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        if step % 60 == 59:
            print(f"step {step + 1} loss {loss.item():.4f}")
    with torch.no_grad():
        fixed = torch.Generator().manual_seed(3)
        scores = [loss_on(net, noise, held_out, fixed, dtype).item() for _ in range(5)]
    return sum(scores) / len(scores)


print("RESULT", main())
