"""Identify stiffness and damping of a row of coupled springs, purely functional: parameters in, parameters out."""
import torch
from torch.func import grad_and_value

torch.manual_seed(0)
torch.set_num_threads(1)
NUMBERS = torch.bfloat16
LINKS = 12
real_stiffness = 300 + 20 * torch.randn(LINKS)
real_damping = 40 + 3 * torch.randn(LINKS)


def guess():
    return {"stiffness": torch.full((LINKS,), 300.0, dtype=NUMBERS),
            "damping": torch.full((LINKS,), 40.0, dtype=NUMBERS)}


def forces(params, stretch, speed):
    link = params["stiffness"].float() * stretch + params["damping"].float() * speed
    return link[:, 1:] - link[:, :-1]


def misfit(params, stretch, speed, measured):
    return (forces(params, stretch, speed) - measured).pow(2).sum(1).mean()


def measure(n, g):
    stretch = torch.randn(n, LINKS, generator=g)
    speed = torch.randn(n, LINKS, generator=g)
    real = {"stiffness": real_stiffness, "damping": real_damping}
    return stretch, speed, forces(real, stretch, speed) + torch.randn(n, LINKS - 1, generator=g)


def descend(params, slopes, rate):
    return {name: p - rate * slopes[name] for name, p in params.items()}


def fit(steps, rate):
    g = torch.Generator().manual_seed(23)
    params = guess()
    for step in range(steps):
        slopes, value = grad_and_value(misfit)(params, *measure(64, g))
        params = descend(params, slopes, rate)
        if step % 50 == 0:
            print(step, value.item())
    return misfit(params, *measure(1000, g)).item()


print("RESULT", fit(150, 0.005))
