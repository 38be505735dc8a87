"""Trains a denoising diffusion model of points on two rings and draws samples from it."""
import math

import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(5)

T = 60


def rings(n):
    angle = torch.rand(n) * 2 * math.pi
    radius = torch.where(torch.rand(n) < 0.5, 0.6, 1.6) + 0.04 * torch.randn(n)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1) + 0.5


class Schedule:
    def __init__(self, steps, low=1e-3, high=0.15):
        self.beta = torch.linspace(low, high, steps)
        self.alpha = 1.0 - self.beta
        self.alpha_bar = torch.cumprod(self.alpha, dim=0)

    def noised(self, x0, t, noise):
        keep = self.alpha[t].unsqueeze(1)
        return keep.sqrt() * x0 + (1.0 - keep).sqrt() * noise


class Denoiser(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.register_buffer("freq", torch.exp(torch.linspace(0, 4, 16)))
        self.net = nn.Sequential(
            nn.Linear(2 + 32, width), nn.SiLU(),
            nn.Linear(width, width), nn.SiLU(),
            nn.Linear(width, 2))

    def forward(self, x, t):
        phase = (t.float() / T).unsqueeze(1) * self.freq
        return self.net(torch.cat([x, phase.sin(), phase.cos()], dim=1))


@torch.no_grad()
def generate(model, schedule, n):
    x = torch.randn(n, 2)
    for i in reversed(range(T)):
        t = torch.full((n,), i)
        eps = model(x, t)
        a, ab = schedule.alpha[i], schedule.alpha_bar[i]
        x = (x - (1 - a) / (1 - ab).sqrt() * eps) / a.sqrt()
        if i > 0:
            x = x + schedule.beta[i].sqrt() * torch.randn_like(x)
    return x


def sliced_distance(a, b, directions=64):
    angle = torch.arange(directions) / directions * math.pi
    u = torch.stack([angle.cos(), angle.sin()])
    pa, pb = (a @ u).sort(dim=0).values, (b @ u).sort(dim=0).values
    return (pa - pb).abs().mean().item()


schedule = Schedule(T)
model = Denoiser()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400, eta_min=1e-4)
average = 0.0
for step in range(400):
    x0 = rings(512)
    t = torch.randint(0, T, (512,))
    noise = torch.randn_like(x0)
    loss = (model(schedule.noised(x0, t, noise), t) - noise).pow(2).mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    decay.step()
    average = loss.item() if step == 0 else 0.98 * average + 0.02 * loss.item()
    if step % 100 == 99:
        print(f"step {step + 1} loss {average:.4f}")

model.eval()
print("RESULT", round(sliced_distance(generate(model, schedule, 2000), rings(2000)), 4))
