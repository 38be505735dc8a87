"""Twelve layers with a sigmoid after each."""

import torch
from torch import nn

from doctor.loops import batches

CODE = "GRADIENTS_VANISH"


def net(activation, *, depth: int = 12, norms: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(6, 16), activation()]
    for _ in range(depth):
        layers += [nn.Linear(16, 16), *([nn.LayerNorm(16)] if norms else []), activation()]
    return nn.Sequential(*layers, nn.Linear(16, 3))


def train(model: nn.Module, *, rate: float = 0.05, steps: int = 34, make=None) -> None:
    optimizer = (make or (lambda weights: torch.optim.SGD(weights, lr=rate)))(model.parameters())
    for images, labels in batches(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def broken() -> None:
    train(net(nn.Sigmoid))


def mended() -> None:
    train(net(nn.ReLU, norms=True))


def broken_by_small_weights() -> None:
    model = net(nn.Tanh, depth=6)
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(0.05)
    train(model)


def broken_while_adam_moves_the_weights() -> None:
    train(net(nn.Sigmoid), make=lambda weights: torch.optim.Adam(weights, lr=1e-3))


def broken_by_dead_units() -> None:
    """The first biases are so low that no unit is ever active."""
    model = net(nn.ReLU, depth=1)
    nn.init.constant_(model[0].bias, -20.0)
    train(model)


def healthy_shallow_sigmoids() -> None:
    train(net(nn.Sigmoid, depth=1), rate=0.5)


def healthy_deep_network_with_norms() -> None:
    train(net(nn.GELU, norms=True))


def healthy_head_of_zeros() -> None:
    model = net(nn.ReLU, depth=2)
    nn.init.zeros_(model[-1].weight)
    train(model, rate=0.5)


def healthy_rates_by_layer() -> None:
    model = net(nn.ReLU, depth=2)
    groups = [
        {"params": each.parameters(), "lr": 10.0 ** (place - 6)} for place, each in enumerate(model)
    ]
    optimizer = torch.optim.SGD([each for each in groups if isinstance(each, dict)], lr=0.01)
    for images, labels in batches(34):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
