"""Tide gauge forecast with a recurrent cell trained on chunks of a long record."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(48)

CHUNK, LANES = 12, 24


def gauge(hours, lanes, gen):
    t = torch.arange(hours).float()[:, None]
    x = torch.zeros(hours, lanes)
    for period, size in ((12.42, 1.0), (12.0, 0.35), (25.8, 0.25)):
        phase = 2 * math.pi * torch.rand(1, lanes, generator=gen)
        gain = 0.8 + 0.4 * torch.rand(1, lanes, generator=gen)
        x = x + size * gain * torch.sin(2 * math.pi * t / period + phase)
    return x + 0.05 * torch.randn(hours, lanes, generator=gen)


class TideCell(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.width = width
        self.cell = nn.GRUCell(1, width)
        self.out = nn.Linear(width, 1)

    def start(self, lanes):
        return torch.zeros(lanes, self.width)

    def forward(self, x, h):
        h = self.cell(x[:, None], h)
        return x + self.out(h).squeeze(1), h


def chunk_loss(model, record, begin, h):
    """The losses of a chunk are kept with their graphs until its only backward pass."""
    kept = []
    for t in range(begin, begin + CHUNK):
        pred, h = model(record[t], h)
        kept.append(F.mse_loss(pred, record[t + 1]))
    return torch.stack(kept).mean(), h


@torch.no_grad()
def validate(model, record):
    h, total = model.start(record.shape[1]), 0.0
    for t in range(len(record) - 1):
        pred, h = model(record[t], h)
        if t >= 48:
            total += F.mse_loss(pred, record[t + 1])
    return total.item() / (len(record) - 49)


def main():
    gen = torch.Generator().manual_seed(480)
    record, val = gauge(CHUNK * 40 + 1, LANES, gen), gauge(200, LANES, gen)
    model = TideCell()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.8)
    print(f"persistence {(val[1:] - val[:-1]).square().mean().item():.4f}")
    for pass_number in range(7):
        h = model.start(LANES)
        for begin in range(0, len(record) - CHUNK, CHUNK):
            loss, h = chunk_loss(model, record, begin, h)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            h = h.detach()
        sched.step()
        print(f"pass {pass_number} loss {loss.item():.5f} val {validate(model, val):.5f}")
    print(f"RESULT {validate(model, val):.6f}")


if __name__ == "__main__":
    main()
