"""Forecast hourly electricity load in a chain of short jobs that pass on a checkpoint."""
import math
import os
import tempfile

import torch
import torch.nn as nn

torch.set_num_threads(1)

HISTORY, HORIZON = 72, 24
JOBS, STEPS_PER_JOB, BATCH = 10, 14, 128


def load_curve(hours=24 * 400):
    g = torch.Generator().manual_seed(0)
    t = torch.arange(hours).float()
    day = torch.sin(2 * math.pi * t / 24) + 0.4 * torch.sin(4 * math.pi * t / 24 + 0.5)
    week = 0.5 * torch.cos(2 * math.pi * t / 168)
    drift = torch.cumsum(0.02 * torch.randn(hours, generator=g), 0)
    drift = drift - torch.linspace(0, 1, hours) * drift[-1]
    return day * (1 + 0.3 * week) + week + drift + 0.1 * torch.randn(hours, generator=g)


class Forecaster(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(HISTORY, width), nn.GELU(), nn.LayerNorm(width))
        self.block = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.dec = nn.Linear(width, HORIZON)

    def forward(self, x):
        last = x[:, -1:]
        h = self.enc(x - last)
        return self.dec(h + self.block(h)) + last


def batch_of(series, starts):
    x = torch.stack([series[s:s + HISTORY] for s in starts.tolist()])
    y = torch.stack([series[s + HISTORY:s + HISTORY + HORIZON] for s in starts.tolist()])
    return x, y


def save(path, model, optimizer, step):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step,
                "rng": torch.get_rng_state()}, path)


def run_job(path, series, split):
    model = Forecaster()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    scaler = torch.amp.GradScaler("cpu")
    step = 0
    if os.path.exists(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        step = state["step"]

    for _ in range(STEPS_PER_JOB):
        x, y = batch_of(series, torch.randint(0, split - HISTORY - HORIZON, (BATCH,)))
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            forecast = model(x)
            loss = ((forecast - y) ** 2).sum(dim=1).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        step += 1
    save(path, model, optimizer, step)
    print(f"job ends at step {step} loss/hour {loss.item() / BATCH / HORIZON:.4f}")
    return model


@torch.no_grad()
def test_error(model, series, split):
    model.eval()
    x, y = batch_of(series, torch.arange(split, len(series) - HISTORY - HORIZON, 13))
    return (model(x) - y).pow(2).mean().item()


def main():
    torch.manual_seed(4)
    series = load_curve()
    split = int(0.8 * len(series))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "last.pt")
        for _ in range(JOBS):
            model = run_job(path, series, split)
    print(f"RESULT {test_error(model, series, split):.5f}")


if __name__ == "__main__":
    main()
