"""Multi-horizon forecast of bicycle rentals with one output layer for each horizon."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(14)

HISTORY = 24
HORIZONS = (1, 2, 4, 6, 9, 12)


def rentals(hours, gen):
    t = torch.arange(hours).float()
    day = torch.sin(2 * math.pi * t / 24) + 0.6 * torch.sin(4 * math.pi * t / 24 + 0.7)
    weather = torch.zeros(hours)
    kicks = 0.2 * torch.randn(hours, generator=gen)
    for i in range(1, hours):
        weather[i] = 0.97 * weather[i - 1] + kicks[i]
    return day * (1 + 0.2 * torch.tanh(weather)) + 0.5 * weather


def supervised(series):
    last = len(series) - max(HORIZONS)
    ends = torch.arange(HISTORY, last)
    past = series[ends[:, None] - HISTORY + torch.arange(HISTORY)]
    ahead = series[ends[:, None] - 1 + torch.tensor(HORIZONS)]
    return past, ahead


class HorizonHead(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.hidden = nn.Linear(width, 16)
        self.out = nn.Linear(16, 1)

    def forward(self, h):
        return self.out(F.silu(self.hidden(h)))


class HorizonModel(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(HISTORY, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
        )
        self.heads = nn.ModuleList([HorizonHead(width)] * len(HORIZONS))

    def forward(self, past):
        h = self.encoder(past)
        return torch.cat([head(h) for head in self.heads], dim=1)


def train(model, data, steps, batch, gen):
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, total_iters=20)
    cool = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps - 20)
    sched = torch.optim.lr_scheduler.SequentialLR(opt, [warm, cool], milestones=[20])
    past, ahead = data
    for step in range(steps):
        pick = torch.randint(0, len(past), (batch,), generator=gen)
        loss = F.huber_loss(model(past[pick]), ahead[pick])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        yield step, loss.item()


def main():
    gen = torch.Generator().manual_seed(15)
    series = rentals(4000, gen)
    cut = 3200
    data, (v_past, v_ahead) = supervised(series[:cut]), supervised(series[cut:])
    model = HorizonModel()

    def per_horizon():
        with torch.no_grad():
            return (model(v_past) - v_ahead).pow(2).mean(0)

    for step, loss in train(model, data, 400, 64, gen):
        if step % 100 == 0:
            errors = " ".join(f"{e:.3f}" for e in per_horizon().tolist())
            print(f"step {step} loss {loss:.4f} val by horizon {errors}")
    print(f"RESULT {per_horizon().mean().item():.5f}")


if __name__ == "__main__":
    main()
