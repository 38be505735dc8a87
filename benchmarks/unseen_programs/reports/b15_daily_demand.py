"""Daily demand from calendar phases and two covariates, in mixed precision."""
import math

import torch
import torch.nn as nn

torch.set_num_threads(1)

PERIODS = (7.0, 7.0 / 2, 7.0 / 3, 30.44, 365.25, 365.25 / 2)


class CalendarEmbedding(nn.Module):
    """sin/cos of the day number for a set of periods."""

    def __init__(self, periods=PERIODS):
        super().__init__()
        self.register_buffer("omega", 2 * math.pi / torch.tensor(periods))

    def forward(self, day):
        phase = day.float().unsqueeze(-1) @ self.omega.unsqueeze(0)
        return torch.cat([phase.sin(), phase.cos()], dim=-1)


class Demand(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.calendar = CalendarEmbedding()
        self.net = nn.Sequential(
            nn.Linear(2 * len(PERIODS) + 2, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, day, extra):
        return self.net(torch.cat([self.calendar(day), extra], dim=-1)).squeeze(-1)


def history(n, seed):
    gen = torch.Generator().manual_seed(seed)
    day = torch.randint(0, 3650, (n,), generator=gen)
    weekly = torch.tensor([0.1, 0.0, -0.2, 0.3, 1.1, 1.6, -1.4])[day % 7]
    yearly = 0.8 * torch.sin(2 * math.pi * day / 365.25)
    extra = torch.randn(n, 2, generator=gen)
    demand = weekly + yearly + 0.5 * extra[:, 0] * (weekly > 1) + 0.3 * extra[:, 1]
    return day, extra, demand + 0.1 * torch.randn(n, generator=gen)


def forward(model, day, extra):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(day, extra)
    return out.float()


def validation_loss(model, data):
    model.eval()
    with torch.no_grad():
        loss = nn.functional.mse_loss(forward(model, data[0], data[1]), data[2]).item()
    model.train()
    return loss


def main(epochs=14, batch=64):
    torch.manual_seed(18)
    train, val = history(4000, 1), history(1000, 2)
    model = Demand()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs, eta_min=1e-4)
    for epoch in range(epochs):
        total, count = 0.0, 0
        for idx in torch.randperm(len(train[0])).split(batch):
            day, extra, demand = (t[idx] for t in train)
            loss = nn.functional.mse_loss(forward(model, day, extra), demand)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, count = total + loss.item(), count + 1
        scheduler.step()
        if epoch % 2 == 1:
            print(f"epoch {epoch} loss {total / count:.4f} val {validation_loss(model, val):.4f}")
    print("RESULT", validation_loss(model, val))


if __name__ == "__main__":
    main()
