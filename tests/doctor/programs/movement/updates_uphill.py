"""An optimizer of the program's own adds the gradients to the weights."""

import torch
from torch import nn

from doctor.loops import batches, classifier

CODE = "UPDATES_UPHILL"


class Descent(torch.optim.Optimizer):
    def __init__(self, params, lr: float, sign: float) -> None:
        super().__init__(params, {"lr": lr})
        self.sign = sign

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                each.add_(each.grad, alpha=self.sign * group["lr"])


def train(make, *, loss_of=nn.functional.cross_entropy, model=None, steps: int = 24) -> None:
    model = model or classifier()
    optimizer = make(model.parameters())
    for images, labels in batches(steps):
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()


def broken() -> None:
    train(lambda weights: Descent(weights, 0.05, sign=1.0))


def mended() -> None:
    train(lambda weights: Descent(weights, 0.05, sign=-1.0))


def broken_by_maximize() -> None:
    train(lambda weights: torch.optim.SGD(weights, lr=0.05, maximize=True))


def broken_by_maximize_in_adam() -> None:
    train(lambda weights: torch.optim.Adam(weights, lr=0.01, maximize=True))


class HeavyBall(torch.optim.Optimizer):
    """Adds the velocity, which contains the gradients with this sign."""

    def __init__(self, params, lr: float, sign: float) -> None:
        super().__init__(params, {"lr": lr})
        self.sign = sign

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                velocity = self.state[each].setdefault("velocity", torch.zeros_like(each))
                velocity.mul_(0.9).add_(each.grad, alpha=self.sign * group["lr"])
                each.add_(velocity)


def deep() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 3)
    )


def broken_by_a_momentum_until_layers_saturate() -> None:
    train(lambda weights: HeavyBall(weights, 0.1, sign=1.0), model=deep(), steps=72)


def healthy_momentum_in_deep_layers() -> None:
    train(lambda weights: HeavyBall(weights, 0.1, sign=-1.0), model=deep(), steps=72)


def healthy_adam() -> None:
    train(lambda weights: torch.optim.Adam(weights, lr=0.01))


def healthy_score_that_is_maximized() -> None:
    """The mean probability of the right class is maximized."""

    def score(scores, labels):
        return scores.softmax(-1).gather(1, labels[:, None]).mean()

    train(lambda weights: torch.optim.SGD(weights, lr=0.5, maximize=True), loss_of=score)


def healthy_attack() -> None:
    """A perturbation of the inputs maximizes the loss of a model."""
    model = classifier().eval().requires_grad_(requires_grad=False)
    noise = nn.Parameter(torch.zeros(8, 6))
    optimizer = torch.optim.SGD([noise], lr=0.5, maximize=True)
    (images, labels), *_ = batches(1)
    for _ in range(24):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images + noise), labels).backward()
        optimizer.step()


def healthy_adversaries() -> None:
    """A second optimizer maximizes what the first one minimizes."""
    model, other = classifier(), nn.Linear(6, 6)
    first = torch.optim.SGD(model.parameters(), lr=0.05)
    second = torch.optim.SGD(other.parameters(), lr=0.05, maximize=True)
    for images, labels in batches(24):
        first.zero_grad()
        second.zero_grad()
        nn.functional.cross_entropy(model(images + other(images)), labels).backward()
        first.step()
        second.step()


def healthy_rate_with_noise() -> None:
    """Momentum overshoots, so that some updates go uphill."""
    train(lambda weights: torch.optim.SGD(weights, lr=0.2, momentum=0.95), steps=40)
