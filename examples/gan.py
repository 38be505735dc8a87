"""A GAN whose generator and discriminator take turns, with one engine for both.

`engine.backward(loss, optimizers=[...])` accumulates gradients only for the parameters of these
optimizers, so the generator's turn leaves no gradients in the discriminator.
`engine.step(optimizers=[...])` steps only these optimizers. Both networks share one loss scale,
which is updated once per turn. The data are eight points on a ring; a trained generator makes
points near all eight.

    python examples/gan.py [--recipe fp32]
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  (torch's own custom)

from halfstep import Engine

POINTS = 8
BATCH = 256
NOISE = 8
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def ring(count: int) -> torch.Tensor:
    """Return points near eight places on a circle of radius 2, shape (count, 2)."""
    angles = torch.randint(POINTS, (count,)) * (2 * math.pi / POINTS)
    centres = 2 * torch.stack([angles.cos(), angles.sin()], dim=1)
    return (centres + 0.05 * torch.randn(count, 2)).to(DEVICE)


def network(inputs: int, outputs: int) -> nn.Sequential:
    """Return a network with two hidden layers."""
    hidden = [nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2)]
    return nn.Sequential(*hidden, nn.Linear(64, outputs)).to(DEVICE)


def train(recipe: str, steps: int) -> torch.Tensor:
    """Train both halves and return points that the generator makes, shape (1000, 2)."""
    torch.manual_seed(0)
    generator, discriminator = network(NOISE, 2), network(2, 1)
    g = torch.optim.Adam(generator.parameters(), lr=3e-3, betas=(0.5, 0.999))
    d = torch.optim.Adam(discriminator.parameters(), lr=3e-3, betas=(0.5, 0.999))
    with Engine([generator, discriminator], [g, d], recipe=recipe) as engine:
        make, judge = engine.models
        for _ in range(steps):
            noise = torch.randn(BATCH, NOISE, device=DEVICE)

            with engine.autocast():
                real, made = judge(ring(BATCH)), judge(make(noise).detach())
                loss = F.softplus(-real.float()).mean() + F.softplus(made.float()).mean()
            engine.backward(loss, optimizers=[d])
            engine.step(optimizers=[d])

            with engine.autocast():
                loss = F.softplus(-judge(make(noise)).float()).mean()
            engine.backward(loss, optimizers=[g])
            engine.step(optimizers=[g])
        with engine.evaluating():
            return make(torch.randn(1000, NOISE, device=DEVICE)).float().cpu()


def distances(made: torch.Tensor) -> tuple[float, int]:
    """Return the mean distance to the ring, and how many of its eight places have points nearby."""
    angles = torch.atan2(made[:, 1], made[:, 0]) % (2 * math.pi)
    nearest = (angles * POINTS / (2 * math.pi)).round().long() % POINTS
    taken = torch.bincount(nearest, minlength=POINTS) > 20
    return (made.norm(dim=1) - 2).abs().mean().item(), int(taken.sum())


def main(arguments: list[str] | None = None) -> tuple[float, int]:
    """Train, and print and return the distance of the points from the ring."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--recipe", default="fp16")
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args(arguments)
    distance, places = distances(train(options.recipe, options.steps))
    print(f"{options.recipe}: {distance:.3f} from the ring, near {places} of its {POINTS} places")
    return distance, places


if __name__ == "__main__":
    main()
