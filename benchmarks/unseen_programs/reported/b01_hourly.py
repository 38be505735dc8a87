"""Hourly load model: weather plus calendar effects, trained under bfloat16 autocast."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.set_num_threads(1)
HOURS = 2400


def build_dataset():
    g = torch.Generator().manual_seed(100)
    t = torch.arange(HOURS).repeat(2)
    weather = torch.randn(len(t), 4, generator=g)
    day, week = 2 * math.pi * t / 24, 2 * math.pi * t / 168
    load = torch.sin(day) + 0.5 * torch.cos(2 * day) + 0.6 * torch.sin(week)
    load = load + 0.4 * weather[:, 0] * torch.cos(day) + 0.2 * torch.tanh(weather[:, 1])
    return TensorDataset(weather, t, load + 0.05 * torch.randn(len(t), generator=g))


class CalendarFeatures(nn.Module):
    def __init__(self, periods=(6.0, 12.0, 24.0, 84.0, 168.0)):
        super().__init__()
        self.register_buffer("omega", 2 * math.pi / torch.tensor(periods), persistent=False)

    def forward(self, t, dtype):
        angle = t.to(dtype)[:, None] * self.omega
        return torch.cat([angle.sin(), angle.cos()], dim=-1).to(dtype)


class LoadModel(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.weather = nn.Linear(4, width)
        self.calendar = CalendarFeatures()
        self.mix = nn.Linear(width + 10, width)
        self.hidden = nn.Linear(width, width)
        self.out = nn.Linear(width, 1)

    def forward(self, weather, t):
        h = F.gelu(self.weather(weather))
        h = torch.cat([h, self.calendar(t, h.dtype)], dim=-1)
        h = F.gelu(self.mix(h))
        h = h + F.gelu(self.hidden(h))
        return self.out(h).squeeze(-1)


def run_epoch(model, loader, opt=None, sched=None):
    model.train(opt is not None)
    total, n = 0.0, 0
    with torch.set_grad_enabled(opt is not None):
        for weather, t, load in loader:
            with torch.autocast("cpu", torch.bfloat16):
                pred = model(weather, t)
            loss = F.mse_loss(pred.float(), load)
            if opt is not None:
                opt.zero_grad()
                loss.backward()
                opt.step()
                sched.step()
            total += loss.item() * len(load)
            n += len(load)
    return total / n


def main():
    torch.manual_seed(3)
    train_set, val_set = random_split(build_dataset(), [4000, 800])
    train, val = DataLoader(train_set, 64, shuffle=True), DataLoader(val_set, 400)
    model = LoadModel()
    epochs = 8
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 4e-3, total_steps=epochs * len(train))
    for epoch in range(epochs):
        tr = run_epoch(model, train, opt, sched)
        print(f"epoch {epoch}  train {tr:.4f}  val {run_epoch(model, val):.4f}")
    print("RESULT", run_epoch(model, val))


if __name__ == "__main__":
    main()
