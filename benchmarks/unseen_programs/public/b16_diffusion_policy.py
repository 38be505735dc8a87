"""Trains a diffusion policy on demonstrations of a reaching task."""
import math
from collections import namedtuple

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(41)

Batch = namedtuple("Batch", "actions conditions")


def cosine_beta_schedule(steps, s=0.008):
    x = torch.linspace(0, steps, steps + 1)
    bar = torch.cos(((x / steps) + s) / (1 + s) * math.pi / 2) ** 2
    return (1 - bar[1:] / bar[:-1]).clamp(max=0.999)


def extract(a, t, shape):
    return a[t].view(-1, *([1] * (len(shape) - 1)))


class SinusoidalPosEmb(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("freq", torch.exp(torch.arange(dim // 2)
                                               * -(math.log(1e4) / (dim // 2 - 1))))

    def forward(self, t):
        arg = t[:, None].float() * self.freq
        return torch.cat([arg.sin(), arg.cos()], -1)


class DiffusionMLP(nn.Module):
    def __init__(self, action_dim, horizon, cond_dim, width=128, time_dim=16):
        super().__init__()
        self.time = nn.Sequential(SinusoidalPosEmb(time_dim), nn.Linear(time_dim, 32), nn.Mish(),
                                  nn.Linear(32, time_dim))
        self.net = nn.Sequential(
            nn.Linear(action_dim * horizon + time_dim + cond_dim, width), nn.Mish(),
            nn.Linear(width, width), nn.Mish(), nn.Linear(width, action_dim * horizon))

    def forward(self, x, t, cond):
        out = self.net(torch.cat([x.flatten(1), self.time(t), cond], -1))
        return out.view_as(x)


class DiffusionModel(nn.Module):
    def __init__(self, network, horizon, action_dim, denoising_steps=20, predict_epsilon=True):
        super().__init__()
        self.network, self.horizon, self.action_dim = network, horizon, action_dim
        self.denoising_steps, self.predict_epsilon = denoising_steps, predict_epsilon
        betas = cosine_beta_schedule(denoising_steps)
        bar = torch.cumprod(1 - betas, 0)
        prev = torch.cat([torch.ones(1), bar[:-1]])
        self.register_buffer("sqrt_bar", bar.sqrt())
        self.register_buffer("sqrt_one_minus_bar", (1 - bar).sqrt())
        self.register_buffer("mu_x0", betas * prev.sqrt() / (1 - bar))
        self.register_buffer("mu_xt", (1 - prev) * (1 - betas).sqrt() / (1 - bar))
        self.register_buffer("var", betas * (1 - prev) / (1 - bar))

    def q_sample(self, x_start, t, noise):
        return (extract(self.sqrt_bar, t, x_start.shape) * x_start
                + extract(self.sqrt_one_minus_bar, t, x_start.shape) * noise)

    def p_losses(self, x_start, cond, t):
        noise = torch.randn_like(x_start)
        x_noisy = self.q_sample(x_start=x_start, t=t, noise=noise)
        x_recon = self.network(x_noisy, t, cond)
        if self.predict_epsilon:
            return F.mse_loss(x_recon, noise, reduction="mean")
        return F.mse_loss(x_recon, x_noisy, reduction="mean")

    def loss(self, batch):
        t = torch.randint(0, self.denoising_steps, (len(batch.actions),))
        return self.p_losses(batch.actions, batch.conditions, t)

    @torch.no_grad()
    def forward(self, cond):
        x = torch.randn(len(cond), self.horizon, self.action_dim)
        for step in reversed(range(self.denoising_steps)):
            t = torch.full((len(cond),), step)
            out = self.network(x, t, cond)
            if self.predict_epsilon:
                out = (x - self.sqrt_one_minus_bar[step] * out) / self.sqrt_bar[step]
            x0 = out.clamp(-1, 1)
            x = self.mu_x0[step] * x0 + self.mu_xt[step] * x
            if step > 0:
                x = x + self.var[step].sqrt() * torch.randn_like(x)
        return x


def demonstrations(n, horizon=4):
    """The expert moves a fixed share of the remaining way to the goal, around a bend."""
    pos, goal = torch.rand(n, 2) * 2 - 1, torch.rand(n, 2) * 2 - 1
    cond = torch.cat([pos, goal], 1)
    actions = []
    for _ in range(horizon):
        delta = 0.4 * (goal - pos)
        act = delta + 0.2 * torch.stack([-delta[:, 1], delta[:, 0]], 1) + 0.02 * torch.randn(n, 2)
        actions.append(act)
        pos = pos + act
    return Batch(torch.stack(actions, 1).clamp(-1, 1), cond)


train, test = demonstrations(4000), demonstrations(400)
model = DiffusionModel(DiffusionMLP(2, 4, 4), horizon=4, action_dim=2, predict_epsilon=False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-6)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400, eta_min=1e-4)
for itr in range(1, 401):
    idx = torch.randint(0, len(train.actions), (128,))
    loss = model.loss(Batch(train.actions[idx], train.conditions[idx]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if itr % 80 == 0:
        error = F.mse_loss(model(test.conditions), test.actions).item()
        print(f"{itr}: train loss {loss.item():8.4f} | action error {error:8.4f}")
print("RESULT", round(error, 5))
