"""Electric load of a region from temperature and the hour of the year, with a bf16 network."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(33)

HOURS = 8760


def year_of_load(gen):
    """Hourly load (standardised): daily rhythm, weekend dip, heating and cooling."""
    hour = torch.arange(HOURS).float()
    day = hour % 24
    rhythm = torch.exp(-0.5 * ((day - 9) / 2.5) ** 2)
    rhythm = rhythm + 1.3 * torch.exp(-0.5 * ((day - 19) / 2) ** 2)
    weekend = ((hour // 24) % 7 >= 5).float()
    season = -torch.cos(2 * math.pi * (hour - 500) / HOURS)
    temp = 11 + 10 * season + 4 * torch.sin(2 * math.pi * (day - 9) / 24)
    temp = temp + 2.5 * torch.randn(HOURS, generator=gen)
    load = 1.2 * rhythm * (1 - 0.4 * weekend) + 0.06 * (14 - temp).clamp(min=0)
    load = load + 0.08 * (temp - 22).clamp(min=0) + 0.08 * torch.randn(HOURS, generator=gen)
    return hour, temp, (load - load.mean()) / load.std()


class Calendar(nn.Module):
    """Sines and cosines of the day, the half day, the week and the year."""

    def __init__(self):
        super().__init__()
        periods = torch.tensor([24.0, 12.0, 8.0, 168.0, 84.0, float(HOURS)])
        self.register_buffer("omega", 2 * math.pi / periods, persistent=False)

    @property
    def size(self):
        return 2 * len(self.omega)

    def forward(self, hour):
        angle = hour[:, None] * self.omega.float()
        return torch.cat([angle.sin(), angle.cos()], dim=1)


class LoadNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.calendar = Calendar()
        self.net = nn.Sequential(
            nn.Linear(self.calendar.size + 1, width), nn.SiLU(),
            nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1),
        )

    def forward(self, hour, temp):
        x = torch.cat([self.calendar(hour), temp[:, None]], dim=1)
        return self.net(x.to(self.net[0].weight.dtype)).squeeze(1)


def loader(hour, temp, load, batch, steps, gen):
    for _ in range(steps):
        pick = torch.randint(0, len(hour), (batch,), generator=gen)
        yield hour[pick], temp[pick], load[pick]


def main():
    gen = torch.Generator().manual_seed(330)
    hour, temp, load = year_of_load(gen)
    inputs = torch.stack([hour, (temp - temp.mean()) / temp.std()], 1).to(torch.bfloat16)
    hour, temp = inputs.unbind(1)
    order = torch.randperm(HOURS, generator=gen)
    train, val = order[:7500], order[7500:]

    model = LoadNet().to(torch.bfloat16)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3, eps=1e-6)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 400, eta_min=3e-4)

    def validate():
        with torch.no_grad():
            return F.mse_loss(model(hour[val], temp[val]).float(), load[val]).item()

    batches = loader(hour[train], temp[train], load[train], 128, 400, gen)
    for step, (h, t, y) in enumerate(batches):
        loss = F.mse_loss(model(h, t).float(), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 80 == 0:
            print(f"step {step} loss {loss.item():.4f} val {validate():.4f}")
    print(f"RESULT {validate():.5f}")


if __name__ == "__main__":
    main()
