"""Surrogate for the deflection of a beam (in metres) from load, place and stiffness."""
import torch
from torch import nn

torch.set_num_threads(1)

UNIT = 1e-6


def deflection(load, place, stiff, where):
    a = torch.minimum(place, where)
    b = torch.maximum(place, where)
    return UNIT * load * a.pow(2) * (3 * b - a) / stiff


def sample(n, generator):
    u = torch.rand(n, 4, generator=generator)
    load, place, stiff, where = 0.5 + 2 * u[:, 0], u[:, 1], 0.5 + u[:, 2], u[:, 3]
    inputs = 2 * u - 1
    return inputs, deflection(load, place, stiff, where)


class Surrogate(nn.Module):
    """Works in micrometres inside, answers in metres."""

    def __init__(self, width=48):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, width), nn.Linear(width, width), nn.Linear(width, 1)])

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = torch.nn.functional.silu(layer(x))
        return UNIT * self.layers[-1](x).squeeze(-1)


def relative_error(model, x, y):
    with torch.no_grad():
        return ((model(x) - y).pow(2).mean().sqrt() / y.pow(2).mean().sqrt()).item()


def fit(steps=900, batch=128):
    gen = torch.Generator().manual_seed(17)
    torch.manual_seed(17)
    x, y = sample(8000, gen)
    xv, yv = sample(1500, gen)
    model = Surrogate()
    opt = torch.optim.Adam(model.parameters(), lr=4e-3, eps=1e-8)
    decay = torch.optim.lr_scheduler.ExponentialLR(opt, 0.998)
    for k in range(steps):
        idx = torch.randint(0, len(x), (batch,), generator=gen)
        loss = (model(x[idx]) - y[idx]).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        decay.step()
        if k % 150 == 0:
            print(f"{k:5d}  rel. error {relative_error(model, xv, yv):.4f}")
    return relative_error(model, xv, yv)


print("RESULT", fit())
