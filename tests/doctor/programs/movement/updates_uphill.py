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


def by_hand(sign: float, *, loss_of=nn.functional.cross_entropy, momentum: float = 0.0) -> None:
    model = classifier()
    velocities = [torch.zeros_like(each) for each in model.parameters()]
    for images, labels in batches(24):
        model.zero_grad()
        loss_of(model(images), labels).backward()
        with torch.no_grad():
            for each, velocity in zip(model.parameters(), velocities, strict=True):
                velocity.mul_(momentum).add_(each.grad)
                each.add_(velocity, alpha=0.05 * sign)


def broken_by_hand() -> None:
    by_hand(1.0)


def healthy_by_hand() -> None:
    by_hand(-1.0, momentum=0.9)


def healthy_score_that_is_raised_by_hand() -> None:
    by_hand(1.0, loss_of=lambda scores, labels: 9.0 + scores.log_softmax(-1)[:, 0].mean())


def healthy_score_that_rises_far_by_hand() -> None:
    by_hand(1.0, loss_of=lambda scores, labels: 1.0 + scores[:, 0].mean())


def healthy_attack_by_hand() -> None:
    """A shift of all inputs raises the loss of a model whose weights also get gradients."""
    model = classifier().eval()
    shift = torch.zeros(1, 6, requires_grad=True)
    (images, labels), *_ = batches(1)
    for _ in range(24):
        (slope,) = torch.autograd.grad(
            nn.functional.cross_entropy(model(images + shift), labels), shift
        )
        with torch.no_grad():
            shift.add_(slope, alpha=0.5)


def functional(sign: float, function) -> None:
    model = deep()
    weights = {name: each.detach() for name, each in model.named_parameters()}

    def loss_of(weights, images, labels):
        scores = torch.func.functional_call(model, weights, (images,))
        return nn.functional.cross_entropy(scores, labels)

    for images, labels in batches(24):
        found = function(loss_of)(weights, images, labels)
        slopes = found if isinstance(found, dict) else found[0]
        weights = {name: each + 0.2 * sign * slopes[name] for name, each in weights.items()}


def broken_functional() -> None:
    functional(1.0, torch.func.grad_and_value)


def broken_functional_without_the_value() -> None:
    functional(1.0, torch.func.grad)


def healthy_functional() -> None:
    functional(-1.0, torch.func.grad_and_value)
