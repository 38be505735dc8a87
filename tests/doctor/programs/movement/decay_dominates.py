"""A momentum of 0.9 is given as the weight decay."""

import torch
from torch import nn

from doctor.loops import batches

CODE = "DECAY_DOMINATES"


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3)
    )


def train(make, *, penalty: float = 0.0, steps: int = 40, noise: bool = False) -> None:
    model = net()
    optimizer = make(model.parameters())
    for images, labels in batches(steps):
        classes = torch.randint(3, labels.shape) if noise else labels
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), classes)
        if penalty:
            loss = loss + penalty * sum(each.square().sum() for each in model.parameters())
        loss.backward()
        optimizer.step()


def broken() -> None:
    train(lambda weights: torch.optim.SGD(weights, lr=0.1, weight_decay=0.9))


def mended() -> None:
    train(lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9))


def broken_in_adamw() -> None:
    train(lambda weights: torch.optim.AdamW(weights, lr=0.001, weight_decay=100.0))


def shrinking(factor: float):
    """Return a function that makes an Adam which shrinks the matrices after each step."""

    def make(weights):
        optimizer = torch.optim.Adam([*weights], lr=0.003)
        matrices = [each for each in optimizer.param_groups[0]["params"] if each.ndim > 1]

        def shrink(*_) -> None:
            with torch.no_grad():
                torch._foreach_mul_(matrices, factor)

        optimizer.register_step_post_hook(shrink)
        return optimizer

    return make


def broken_until_decay_and_gradients_are_in_balance() -> None:
    train(shrinking(0.8), steps=72)


def healthy_slight_shrinking_after_each_step() -> None:
    train(shrinking(0.999), steps=72)


def healthy_random_classes_with_a_slight_shrinking() -> None:
    train(shrinking(0.995), steps=72, noise=True)


def healthy_decay() -> None:
    train(lambda weights: torch.optim.SGD(weights, lr=0.1, weight_decay=0.01))


def healthy_adamw() -> None:
    train(lambda weights: torch.optim.AdamW(weights, lr=0.01, weight_decay=0.1))


def healthy_strong_decay_that_generalizes() -> None:
    train(lambda weights: torch.optim.AdamW(weights, lr=0.01, weight_decay=1.0))


def healthy_random_classes() -> None:
    """Nothing can be learned, and the loss does not fall."""
    train(lambda weights: torch.optim.SGD(weights, lr=0.05), noise=True)


def healthy_small_penalty() -> None:
    train(lambda weights: torch.optim.SGD(weights, lr=0.1), penalty=1e-4)


def broken_by_a_penalty_in_a_loss_that_falls() -> None:
    train(lambda weights: torch.optim.SGD(weights, lr=0.1), penalty=1.0)


def train_before_norms(make) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Linear(6, 32, bias=False), nn.BatchNorm1d(32, affine=False), nn.ReLU()),
        *(nn.Linear(32, 3, bias=False), nn.BatchNorm1d(3, affine=False)),
    )
    optimizer = make(model.parameters())
    for images, labels in batches(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def healthy_decay_before_norms() -> None:
    """The weights before a norm shrink, and their gradients grow."""
    train_before_norms(lambda weights: torch.optim.SGD(weights, lr=0.1, weight_decay=0.6))


def healthy_penalty_before_norms() -> None:
    train_before_norms(lambda weights: torch.optim.Adam(weights, lr=0.01, weight_decay=0.3))


def broken_by_a_penalty_in_the_gradients_of_adam() -> None:
    """Its updates have the signs of the weights, so not quite their direction."""
    train(lambda weights: torch.optim.Adam(weights, lr=0.01, weight_decay=1.0), noise=True)
