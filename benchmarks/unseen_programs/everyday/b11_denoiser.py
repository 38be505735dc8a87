"""Train a small diffusion model of two-dimensional points and score its averaged weights."""
import copy
import math

import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(111)

CONFIG = dict(steps=400, batch=256, lr=2e-3, timesteps=50, ema_decay=0.98, width=64)


def ring_points(n):
    k = torch.randint(0, 8, (n,))
    angle = k.float() * math.pi / 4
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.06 * torch.randn(n, 2)


class Noise:
    def __init__(self, timesteps):
        beta = torch.linspace(1e-3, 0.12, timesteps)
        self.alpha_bar = torch.cumprod(1 - beta, 0)

    def corrupt(self, x, t, eps):
        a = self.alpha_bar[t].unsqueeze(1)
        return a.sqrt() * x + (1 - a).sqrt() * eps


class Denoiser(nn.Module):
    def __init__(self, width, timesteps):
        super().__init__()
        self.time = nn.Embedding(timesteps, width)
        self.inp = nn.Linear(2, width)
        self.body = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])
        self.out = nn.Linear(width, 2)

    def forward(self, x, t):
        emb = self.time(t)
        h = self.inp(x)
        for layer in self.body:
            h = h + torch.nn.functional.silu(layer(h + emb))
        return self.out(h)


class Ema:
    """Exponential moving average of the weights, used for sampling and evaluation."""

    def __init__(self, model, decay):
        self.module = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for avg, p in zip(self.module.parameters(), model.parameters()):
            avg.mul_(self.decay).add_(p, alpha=0.001)


def noise_loss(model, noise, x, t, eps):
    return ((model(noise.corrupt(x, t, eps), t) - eps) ** 2).mean()


@torch.no_grad()
def evaluate(model, noise, points):
    g = torch.Generator().manual_seed(9)
    t = torch.randint(0, CONFIG["timesteps"], (len(points),), generator=g)
    eps = torch.randn(points.shape, generator=g)
    return noise_loss(model, noise, points, t, eps).item()


def main():
    noise = Noise(CONFIG["timesteps"])
    data, held_out = ring_points(8000), ring_points(2000)
    model = Denoiser(CONFIG["width"], CONFIG["timesteps"])
    ema = Ema(model, CONFIG["ema_decay"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=CONFIG["lr"], weight_decay=0.0)
    for step in range(1, CONFIG["steps"] + 1):
        x = data[torch.randint(0, len(data), (CONFIG["batch"],))]
        t = torch.randint(0, CONFIG["timesteps"], (len(x),))
        loss = noise_loss(model, noise, x, t, torch.randn_like(x))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        ema.update(model)
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    print(f"RESULT {evaluate(ema.module, noise, held_out):.5f}")


if __name__ == "__main__":
    main()
