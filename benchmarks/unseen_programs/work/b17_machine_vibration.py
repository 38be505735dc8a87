"""Detect bearing wear from windows of an accelerometer with statistics computed in the model."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(20)

SAMPLES = 128
STATES = ("off", "healthy", "inner_race", "outer_race")


def record(n, gen):
    """Acceleration in m/s2 along the vertical axis; machines that are off show gravity only."""
    state = torch.multinomial(torch.tensor([0.15, 0.35, 0.25, 0.25]), n, True, generator=gen)
    t = torch.arange(SAMPLES).float() / SAMPLES
    speed = 6 + 6 * torch.rand(n, 1, generator=gen)
    x = 1.2 * torch.sin(2 * math.pi * speed * t + 6.28 * torch.rand(n, 1, generator=gen))
    x = x + 0.5 * torch.randn(n, SAMPLES, generator=gen)
    ring = torch.sin(2 * math.pi * 40 * t)
    for k, per_turn in ((2, 5.4), (3, 3.6)):
        hit = (torch.frac(t * speed / 4 * per_turn) < 0.15).float()
        size = 1.2 + torch.rand(n, 1, generator=gen)
        x = x + (state == k).float()[:, None] * size * hit * ring
    gravity = 9.81 + 0.05 * torch.randn(n, 1, generator=gen)
    running = (state != 0).float()[:, None]
    return gravity + running * x, state


class WindowStats(nn.Module):
    """Mean, deviation, crest factor and kurtosis-like ratio of equal parts of the window."""

    def __init__(self, parts):
        super().__init__()
        self.parts = parts

    def forward(self, x):
        w = x.view(len(x), self.parts, -1)
        mean = w.mean(-1)
        std = (w.square().mean(-1) - mean.square()).sqrt()
        peak = (w - mean[..., None]).abs().amax(-1)
        return torch.cat([mean - 9.81, std, peak, peak / (std + 1e-3)], 1)


class WearNet(nn.Module):
    def __init__(self, parts=8, width=48):
        super().__init__()
        self.stats = WindowStats(parts)
        self.spectrum = nn.Linear(SAMPLES // 2, width)
        self.body = nn.Sequential(
            nn.Linear(4 * parts + width, width), nn.ReLU(), nn.Dropout(0.05),
            nn.Linear(width, len(STATES)),
        )

    def forward(self, x):
        centred = x - x.mean(1, keepdim=True)
        power = torch.fft.rfft(centred).abs()[:, 1:].log1p()
        h = torch.cat([self.stats(x), F.relu(self.spectrum(power))], 1)
        return self.body(h)


class Meter:
    def __init__(self, keep=0.95):
        self.keep, self.value = keep, None

    def add(self, x):
        self.value = x if self.value is None else self.keep * self.value + (1 - self.keep) * x


def main():
    gen = torch.Generator().manual_seed(21)
    x, y = record(3000, gen)
    v_x, v_y = record(600, gen)
    model = WearNet()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
    meter = Meter()

    @torch.no_grad()
    def validate():
        model.eval()
        loss = F.cross_entropy(model(v_x), v_y).item()
        model.train()
        return loss

    for step in range(300):
        pick = torch.randint(0, len(x), (64,), generator=gen)
        loss = F.cross_entropy(model(x[pick]), y[pick])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        meter.add(loss.item())
        if step % 60 == 59:
            print(f"step {step + 1} train {meter.value:.4f} val {validate():.4f}")
    print(f"RESULT {validate():.5f}")


if __name__ == "__main__":
    main()
