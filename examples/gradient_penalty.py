"""A critic with a gradient penalty (WGAN-GP, Gulrajani et al. 2017, arXiv:1704.00028, equation 3).

The penalty is a loss of gradients. With a loss scale, these gradients are multiplied by the scale,
so a norm of 1 appears as 65536. Without a loss scale, they may underflow in fp16. `engine.grad`
computes them with the scale and returns them unscaled, in fp32 and differentiable. The penalty is
then a loss like any other.

The critic separates two clouds of points at a distance of 3. A function with slopes of at most 1
can separate their means by at most 3; a critic without the penalty exceeds this by far.

    python examples/gradient_penalty.py [--recipe fp32] [--weight 0]
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from halfstep import Engine

BATCH = 256
DISTANCE = 3.0
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def clouds() -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch of each cloud, shape (batch, 2)."""
    first, second = 0.1 * torch.randn(2, BATCH, 2, device=DEVICE)
    return first, second + torch.tensor([DISTANCE, 0.0], device=DEVICE)


def train(recipe: str, weight: float, steps: int) -> tuple[float, float]:
    """Return the difference of the critic's means, and the norm of its gradient between them."""
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(2, 64), nn.Softplus(), nn.Linear(64, 1)).to(DEVICE)
    optimizer = torch.optim.Adam(critic.parameters(), lr=5e-3)
    with Engine(critic, optimizer, recipe=recipe) as engine:
        for _ in range(steps):
            first, second = clouds()
            share = torch.rand(BATCH, 1, device=DEVICE)
            between = (share * first + (1 - share) * second).requires_grad_()
            with engine.autocast():
                means = [engine.model(points).float().mean() for points in (first, second)]
                (gradient,) = engine.grad(engine.model(between), between, create_graph=True)
                penalty = (gradient.norm(dim=1) - 1).square().mean()
                loss = means[0] - means[1] + weight * penalty
            engine.backward(loss)
            engine.step()
        difference = (means[1] - means[0]).item()
        norm = gradient.norm(dim=1).mean().item()
    return difference, norm


def main(arguments: list[str] | None = None) -> tuple[float, float]:
    """Train, and print and return the difference of means and the gradient norm."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--recipe", default="fp16")
    parser.add_argument("--weight", type=float, default=10.0)
    parser.add_argument("--steps", type=int, default=80)
    options = parser.parse_args(arguments)
    difference, norm = train(options.recipe, options.weight, options.steps)
    print(f"{options.recipe}: means {difference:.2f} apart, mean norm of the gradient {norm:.2f}")
    return difference, norm


if __name__ == "__main__":
    main()
