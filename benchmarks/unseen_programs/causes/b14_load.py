"""Electric load of a plant by minute of the week; network in bfloat16 where it is cheap."""
import math

import torch
import torch.nn as nn

torch.set_num_threads(1)
WEEK = 7 * 24 * 60
PERIODS = (WEEK, 1440.0, 720.0, 480.0, 240.0, 120.0, 60.0)


def plant_load(minute):
    day = minute / 1440 * 2 * math.pi
    base = 1.0 - 0.6 * torch.cos(day) + 0.3 * torch.sin(2 * math.pi * minute / WEEK)
    shift = 0.5 * torch.sin(minute / 60 * 2 * math.pi) * (torch.sin(day) > -0.3)
    pump = 0.6 * torch.cos(minute / 120 * 2 * math.pi)
    return base + shift + pump


class WeekEncoding(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype
        self.register_buffer("omega", torch.tensor([2 * math.pi / p for p in PERIODS]))

    def forward(self, minute):
        angle = minute.to(self.dtype)[:, None] * self.omega
        return torch.cat([angle.sin(), angle.cos()], dim=1).to(self.dtype)


class LoadNet(nn.Module):
    def __init__(self, dtype=torch.bfloat16, width=64):
        super().__init__()
        self.encode = WeekEncoding(dtype)
        self.inp = nn.Linear(2 * len(PERIODS), width)
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, 1)

    def forward(self, minute):
        with torch.autocast("cpu", torch.bfloat16):
            h = torch.relu(self.inp(self.encode(minute)))
            h = torch.relu(self.mid(h))
        return self.out(h.float()).squeeze(-1)


def batches(minutes, load, size):
    while True:
        idx = torch.randint(0, len(minutes), (size,))
        yield minutes[idx], load[idx]


def main():
    torch.manual_seed(40)
    minutes = torch.randperm(WEEK)
    load = plant_load(minutes.float()) + 0.05 * torch.randn(WEEK)
    cut = 8000
    net = LoadNet()
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 6e-3, total_steps=1000)
    source = batches(minutes[:cut], load[:cut], 256)
    for step in range(1000):
        m, y = next(source)
        loss = (net(m) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 200 == 0:
            print(step, round(loss.item(), 4))
    with torch.no_grad():
        print("RESULT", (net(minutes[cut:]) - load[cut:]).pow(2).mean().item())


if __name__ == "__main__":
    main()
