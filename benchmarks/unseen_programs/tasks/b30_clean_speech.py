"""Trains a mask estimator that removes noise from speech-like spectrograms."""
import math

import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(163)

BANDS, FRAMES = 32, 20


class LeanSwish(torch.autograd.Function):
    """x * sigmoid(x), which stores only its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return s * (1 + x * (1 - s))


class Swish(nn.Module):
    def forward(self, x):
        return LeanSwish.apply(x)


class MaskNet(nn.Module):
    def __init__(self, channels=48):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(BANDS, channels, 3, padding=1), Swish(),
            nn.Conv1d(channels, channels, 3, padding=1), Swish(),
            nn.Conv1d(channels, BANDS, 1),
        )

    def forward(self, noisy):
        return torch.sigmoid(self.net(torch.log1p(noisy)))


def mixtures(n, seed):
    """Harmonic stacks that glide, in noise of a random colour."""
    g = torch.Generator().manual_seed(seed)
    band = torch.arange(BANDS).view(1, BANDS, 1).float()
    time = torch.arange(FRAMES).view(1, 1, FRAMES) / FRAMES
    pitch = 4 + 3 * torch.rand(n, 1, 1, generator=g)
    glide = torch.randn(n, 1, 1, generator=g)
    cycle = torch.cos(2 * math.pi * band / (pitch + glide * time))
    loud = torch.sigmoid(6 * torch.sin(2 * math.pi * (time + torch.rand(n, 1, 1, generator=g))))
    clean = 3 * cycle.clamp(min=0) * loud * torch.exp(-band / 20)
    colour = torch.exp(-band / 32 * 3 * torch.rand(n, 1, 1, generator=g))
    noise = 1.5 * colour * torch.rand(n, BANDS, FRAMES, generator=g)
    return clean + noise, clean


def spectral_error(mask, noisy, clean):
    return (mask * noisy - clean).pow(2).mean()


class Enhancer:
    def __init__(self, lr=3e-3):
        self.net = MaskNet()
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=lr)

    def epoch(self, noisy, clean, size=40):
        for pick in torch.randperm(len(noisy)).split(size):
            loss = spectral_error(self.net(noisy[pick]), noisy[pick], clean[pick])
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.net.parameters(), 5.0)
            self.opt.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self, noisy, clean):
        return spectral_error(self.net(noisy), noisy, clean).item()


enhancer = Enhancer()
data, held_out = mixtures(1000, 1), mixtures(250, 2)
for epoch in range(8):
    last = enhancer.epoch(*data)
    print(f"epoch {epoch} train {last:.4f} val {enhancer.evaluate(*held_out):.4f}")
print("RESULT", enhancer.evaluate(*held_out))
