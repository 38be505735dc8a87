"""Hourly load of a substation; gaps in the record do not count, so time is counted from the observed hours."""
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
HOURS = 720
PERIODS = torch.tensor([24.0, 12.0, 8.0, 6.0])


def records(n, g):
    observed = torch.rand(n, HOURS, generator=g) < 0.95
    clock = observed.long().cumsum(1) - 1
    size = 1 + torch.rand(n, 1, generator=g)
    angle = 2 * torch.pi * clock / 24
    load = size * (torch.sin(angle) + 0.5 * torch.cos(3 * angle)) + 0.05 * torch.randn(n, HOURS, generator=g)
    return observed, size, load


class Load(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.size = nn.Linear(1, width)
        self.season = nn.Linear(2 * len(PERIODS), width)
        self.out = nn.Linear(width, 1)

    def clock(self, observed, like):
        hour = observed.to(like.dtype).cumsum(1) - 1
        angle = 2 * torch.pi * hour.unsqueeze(-1).float() / PERIODS
        return torch.cat([angle.sin(), angle.cos()], -1)

    def forward(self, observed, size):
        scale = self.size(size).unsqueeze(1)
        return self.out(scale * self.season(self.clock(observed, scale))).squeeze(-1)


def masked_error(out, load, observed):
    return ((out.float() - load) ** 2 * observed).sum() / observed.sum()


g = torch.Generator().manual_seed(19)
model = Load()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(100):
    observed, size, load = records(4, g)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(observed, size)
    loss = masked_error(out, load, observed)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
    observed, size, load = records(16, g)
    out = model(observed, size)
print("RESULT", masked_error(out, load, observed).item())
