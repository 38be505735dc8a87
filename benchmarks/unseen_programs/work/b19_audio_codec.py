"""Audio codec with a finite scalar quantiser between an encoder and a decoder."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(23)

BLOCK, CODE, LEVELS = 64, 8, 7


def audio_blocks(n, gen):
    """Blocks of a small instrument: a few partials of a slowly varying pitch with decay."""
    t = torch.arange(BLOCK).float() / BLOCK
    pitch = 1.5 + 2.5 * torch.rand(n, 1, generator=gen)
    x = torch.zeros(n, BLOCK)
    for k, size in ((1, 1.0), (2, 0.4)):
        phase = 2 * math.pi * torch.rand(n, 1, generator=gen)
        x = x + size * torch.sin(2 * math.pi * k * pitch * t + phase)
    decay = torch.exp(-2 * torch.rand(n, 1, generator=gen) * t)
    return decay * x + 0.03 * torch.randn(n, BLOCK, generator=gen)


class ScalarQuantiser(nn.Module):
    """Bounds each code dimension and rounds it to one of a few levels."""

    def __init__(self, levels):
        super().__init__()
        self.half = (levels - 1) / 2

    def forward(self, z):
        bounded = torch.tanh(z) * self.half
        rounded = bounded.round()
        return (bounded + (rounded - bounded)) / self.half


class Codec(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(BLOCK, width), nn.GELU(), nn.Linear(width, CODE))
        self.quantiser = ScalarQuantiser(LEVELS)
        self.decoder = nn.Sequential(
            nn.Linear(CODE, width), nn.GELU(), nn.Linear(width, width), nn.GELU(),
            nn.Linear(width, BLOCK),
        )

    def forward(self, x):
        code = self.quantiser(self.encoder(x))
        return self.decoder(code), code


def spectral_loss(y, x):
    return (torch.fft.rfft(y).abs() - torch.fft.rfft(x).abs()).abs().mean()


def entropy_of_codes(code):
    """Mean entropy in bits per code dimension, for the log."""
    index = ((code + 1) * (LEVELS - 1) / 2).round().long()
    freq = F.one_hot(index, LEVELS).float().mean(0)
    return -(freq * (freq + 1e-9).log2()).sum(-1).mean().item()


def main(steps=400, batch=64):
    gen = torch.Generator().manual_seed(230)
    train, val = audio_blocks(4000, gen), audio_blocks(500, gen)
    model = Codec()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps, eta_min=1e-4)

    def validate():
        with torch.no_grad():
            y, code = model(val)
        return F.mse_loss(y, val).item(), entropy_of_codes(code)

    for step in range(steps):
        x = train[torch.randint(0, len(train), (batch,), generator=gen)]
        y, _ = model(x)
        loss = F.mse_loss(y, x) + 0.01 * spectral_loss(y, x)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 80 == 0:
            mse, bits = validate()
            print(f"step {step} loss {loss.item():.4f} val mse {mse:.4f} bits {bits:.2f}")
    mse, bits = validate()
    print(f"bits per block {bits * CODE:.1f}, signal power {val.pow(2).mean().item():.4f}")
    print(f"RESULT {mse:.5f}")


if __name__ == "__main__":
    main()
