"""Surface fit from few stations which report the height and also the slope."""
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
torch.manual_seed(6)


class Stations(NamedTuple):
    xy: torch.Tensor
    height: torch.Tensor
    slope: torch.Tensor


def terrain(xy):
    x, y = xy[:, 0], xy[:, 1]
    return torch.sin(2.2 * x) * torch.cos(1.7 * y) + 0.4 * torch.sin(3 * x + y) + 0.3 * x


def survey(n, seed):
    gen = torch.Generator().manual_seed(seed)
    xy = (torch.rand(n, 2, generator=gen) * 4 - 2).requires_grad_()
    height = terrain(xy)
    slope = torch.autograd.grad(height.sum(), xy)[0]
    return Stations(xy.detach(), height.detach(), slope.detach())


class Surface(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, xy):
        return self.net(xy).squeeze(-1)


def height_and_slope(model, xy):
    xy = xy.clone().requires_grad_()
    height = model(xy)
    slope, = torch.autograd.grad(height.sum(), xy, retain_graph=True)
    return height, slope


def loss_terms(model, data):
    height, slope = height_and_slope(model, data.xy)
    fit = F.mse_loss(height, data.height)
    tilt = F.mse_loss(slope, data.slope)
    return fit, tilt


def rms_error(model, n=60):
    grid = torch.linspace(-2, 2, n)
    xy = torch.cartesian_prod(grid, grid)
    with torch.no_grad():
        return (model(xy) - terrain(xy)).pow(2).mean().sqrt().item()


def main():
    data = survey(40, seed=12)
    model = Surface()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=600, gamma=0.5)
    for step in range(1, 1801):
        fit, tilt = loss_terms(model, data)
        loss = fit + 0.5 * tilt
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 300 == 0:
            print(f"{step:5d} fit {fit.item():.5f} tilt {tilt.item():.5f} error {rms_error(model):.4f}")
    print("RESULT", rms_error(model))


if __name__ == "__main__":
    main()
