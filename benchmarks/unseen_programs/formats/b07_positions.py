import torch
from torch import nn

torch.manual_seed(51)
torch.set_num_threads(1)

LENGTH = 720


class Clock(nn.Module):
    """Sinusoidal code of the position in the series."""

    def __init__(self, dim):
        super().__init__()
        self.register_buffer("rate", 2 * torch.pi / torch.tensor([3.0, 5.0, 7.0, 12.0, 24.0, 60.0, 144.0, 720.0]), persistent=False)
        self.mix = nn.Linear(16, dim)

    def forward(self, x, start):
        pos = torch.arange(x.shape[1], device=x.device, dtype=x.dtype) + start.to(x.dtype)[:, None]
        angle = pos[..., None] * self.rate
        return self.mix(torch.cat([angle.sin(), angle.cos()], -1).to(x.dtype))


class Series(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.inp = nn.Linear(1, dim)
        self.clock = Clock(dim)
        self.net = nn.Sequential(nn.GELU(), nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, 1))

    def forward(self, x, start):
        return self.net(self.inp(x) + self.clock(x, start))


def windows(n, gen, width=24):
    start = torch.randint(0, LENGTH - width, (n,), generator=gen)
    t = (start[:, None] + torch.arange(width)).float()
    drive = torch.randn(n, width, 1, generator=gen)
    season = torch.sin(2 * torch.pi * t / 7) + 0.7 * torch.cos(2 * torch.pi * t / 5)
    y = season + 0.5 * drive[..., 0] * torch.sin(2 * torch.pi * t / 12)
    return drive, start, y[..., None]


def train(model, opt, gen, steps):
    for step in range(steps):
        drive, start, y = windows(32, gen)
        pred = model(drive.bfloat16(), start).float()
        loss = nn.functional.mse_loss(pred, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 100 == 0:
            print(step, round(loss.item(), 4))


def main():
    gen = torch.Generator().manual_seed(9)
    model = Series().bfloat16()
    model.clock.rate = model.clock.rate.float()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, opt, gen, 800)
    drive, start, y = windows(500, gen)
    with torch.no_grad():
        print("RESULT", nn.functional.mse_loss(model(drive.bfloat16(), start).float(), y).item())


main()
