"""Fit a flow field (three velocity components, m/s) by coordinates, many points to a step, half precision."""
import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
UNIT = 0.02


def velocity(xy):
    x, y = xy.unbind(-1)
    r = torch.sin(5 * x + 2 * y)
    g = torch.exp(-4 * (x.square() + y.square()))
    b = torch.tanh(4 * (x - y * y))
    return UNIT * torch.stack([r, g, b], -1)


class Fourier(nn.Module):
    def __init__(self, bands, gen):
        super().__init__()
        self.register_buffer("w", torch.randn(2, bands, generator=gen) * 2.5)

    def forward(self, xy):
        p = xy @ self.w
        return torch.cat([p.sin(), p.cos()], -1)


class Branch(nn.Module):
    def __init__(self, width, gain):
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)
        self.gain = gain

    def forward(self, h):
        return h + self.gain * self.down(F.gelu(self.up(h)))


def build(gen, width=32):
    net = nn.Sequential(Fourier(12, gen), nn.Linear(24, width), nn.GELU(),
                        Branch(width, 0.2), Branch(width, 0.2), nn.Linear(width, 3))
    return net


def main():
    torch.manual_seed(25)
    gen = torch.Generator().manual_seed(25)
    net = build(gen)
    opt = torch.optim.Adam(net.parameters(), lr=4e-3, eps=1e-12)
    steps = 300
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    for k in range(steps):
        xy = 2 * torch.rand(2048, 2, generator=gen) - 1
        with torch.autocast("cpu", torch.float16):
            out = net(xy)
        loss = F.mse_loss(UNIT * out.float(), velocity(xy))
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if k % 60 == 0:
            print(k, f"{loss.item():.3e}")
    grid = torch.cartesian_prod(torch.linspace(-1, 1, 48), torch.linspace(-1, 1, 48))
    with torch.no_grad():
        print("RESULT", (F.mse_loss(UNIT * net(grid), velocity(grid)) / velocity(grid).pow(2).mean()).item())


main()
