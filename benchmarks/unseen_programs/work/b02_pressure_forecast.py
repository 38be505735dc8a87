"""Forecast station pressure for the next day from two days of hourly readings."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(2)

PAST, AHEAD = 48, 24


def station_record(hours, gen):
    """Hourly pressure in Pa: slow weather systems, the tide of the air, sensor noise."""
    t = torch.arange(hours).float()
    p = torch.full((hours,), 101_325.0)
    for period, size in ((131.0, 620.0), (77.0, 410.0), (211.0, 480.0)):
        phase = 2 * math.pi * torch.rand(1, generator=gen)
        drift = torch.cumsum(0.004 * torch.randn(hours, generator=gen), 0)
        p = p + size * torch.sin(2 * math.pi * t / period + phase + drift)
    p = p + 110 * torch.sin(2 * math.pi * t / 12)
    return p + 15 * torch.randn(hours, generator=gen)


def windows(record, starts):
    idx = starts[:, None] + torch.arange(PAST + AHEAD)[None]
    w = record[idx]
    return w[:, :PAST], w[:, PAST:]


class Forecaster(nn.Module):
    def __init__(self, mean, std, width):
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.net = nn.Sequential(
            nn.Linear(PAST, width), nn.GELU(),
            nn.Linear(width, width), nn.GELU(),
            nn.Linear(width, AHEAD),
        )

    def forward(self, past):
        z = (past - self.mean) / self.std
        return self.net(z).float() * self.std + self.mean


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--width", type=int, default=64)
    ap.add_argument("--lr", type=float, default=3e-3)
    return ap.parse_args([])


def main():
    args = parse()
    gen = torch.Generator().manual_seed(40)
    record = station_record(9000, gen)
    train_end = 7500
    model = Forecaster(record[:train_end].mean(), record[:train_end].std(), args.width)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.steps)
    v_past, v_ahead = windows(record, torch.arange(train_end, 9000 - PAST - AHEAD, 3))

    def rmse():
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
            pred = model(v_past)
        return ((pred - v_ahead) ** 2).mean().sqrt().item()

    for step in range(args.steps):
        starts = torch.randint(0, train_end - PAST - AHEAD, (args.batch,), generator=gen)
        past, ahead = windows(record, starts)
        with torch.autocast("cpu", dtype=torch.float16):
            pred = model(past)
        loss = F.mse_loss(pred, ahead, reduction="sum")
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 75 == 0:
            print(f"step {step} loss {loss.item():.4g} val rmse {rmse():.1f} Pa")
    print("persistence rmse", ((v_past[:, -1:] - v_ahead) ** 2).mean().sqrt().item())
    print(f"RESULT {rmse():.4f}")


if __name__ == "__main__":
    main()
