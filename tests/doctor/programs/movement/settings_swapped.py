"""The betas of Adam are given in the wrong order."""

import torch
from torch import nn

from doctor.loops import batches, classifier

CODE = "SETTINGS_SWAPPED"


def train(make) -> None:
    model = classifier()
    optimizer = make(model.parameters())
    for images, labels in batches(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def broken() -> None:
    train(lambda weights: torch.optim.Adam(weights, lr=0.001, betas=(0.999, 0.9)))


def mended() -> None:
    train(lambda weights: torch.optim.Adam(weights, lr=0.001, betas=(0.9, 0.999)))


def broken_by_a_dampening_alone() -> None:
    train(lambda weights: torch.optim.SGD(weights, lr=0.01, dampening=0.9))


def broken_by_the_fourth_argument() -> None:
    train(lambda weights: torch.optim.SGD(weights, 0.01, 0.9, 5e-4))


def broken_by_a_decay_and_a_momentum_in_the_places_behind() -> None:
    train(lambda weights: torch.optim.SGD(weights, 0.01, 5e-4, 0.9))


def healthy_small_momentum() -> None:
    train(lambda weights: torch.optim.SGD(weights, 0.01, momentum=0.01, weight_decay=5e-4))


def healthy_betas_of_a_gan() -> None:
    train(lambda weights: torch.optim.Adam(weights, lr=0.001, betas=(0.5, 0.9)))


def healthy_betas_of_language_models() -> None:
    train(lambda weights: torch.optim.AdamW(weights, lr=0.001, betas=(0.9, 0.95)))


def healthy_equal_betas() -> None:
    train(lambda weights: torch.optim.Adam(weights, lr=0.001, betas=(0.95, 0.95)))


def healthy_dampening_beside_a_momentum() -> None:
    train(lambda weights: torch.optim.SGD(weights, lr=0.01, momentum=0.9, dampening=0.9))


def healthy_weight_decay_by_position() -> None:
    train(lambda weights: torch.optim.SGD(weights, 0.01, 0.9, 0, 5e-4))


def broken_by_an_eps_in_place_of_the_smoothing() -> None:
    train(lambda weights: torch.optim.RMSprop(weights, 0.001, 1e-8, 0.99))


def broken_by_a_momentum_in_place_of_the_rate() -> None:
    train(lambda weights: torch.optim.SGD(weights, 0.9, 0.01))


def healthy_large_eps_of_a_recipe() -> None:
    train(lambda weights: torch.optim.RMSprop(weights, 0.05, alpha=0.9, eps=1.0))


def healthy_high_rate_with_a_momentum() -> None:
    train(lambda weights: torch.optim.SGD(weights, 0.9, 0.5))


def healthy_smoothing_that_forgets_at_once() -> None:
    train(lambda weights: torch.optim.RMSprop(weights, 0.001, alpha=0.0, eps=1e-3))


def broken_by_betas_of_language_models() -> None:
    train(lambda weights: torch.optim.AdamW(weights, lr=0.001, betas=(0.98, 0.9)))


def healthy_longer_memory_of_gradients() -> None:
    train(lambda weights: torch.optim.Adam(weights, lr=0.001, betas=(0.95, 0.9)))


def broken_by_a_momentum_in_place_of_a_rate_that_falls() -> None:
    def make(weights):
        optimizer = torch.optim.SGD(weights, 0.9, 0.05)
        for group in optimizer.param_groups:
            group["lr"] *= 0.1
        return optimizer

    train(make)


def grouped(weights) -> list[dict]:
    """The first group has no decay, as that of norms and biases."""
    weights = [*weights]
    return [{"params": weights[1:], "weight_decay": 0.0}, {"params": weights[:1]}]


def broken_by_a_decay_in_place_of_the_eps() -> None:
    train(lambda weights: torch.optim.AdamW(grouped(weights), 0.001, (0.9, 0.98), 0.05, 1e-8))


def healthy_large_eps() -> None:
    train(lambda weights: torch.optim.AdamW(weights, 0.001, eps=0.05, weight_decay=0.01))


def healthy_small_decay() -> None:
    train(lambda weights: torch.optim.Adam(weights, 0.001, eps=1e-4, weight_decay=1e-6))


def broken_by_a_decay_in_place_of_the_momentum() -> None:
    train(lambda weights: torch.optim.SGD(weights, 0.05, momentum=1e-4, weight_decay=0.9))


def healthy_large_decay_with_a_momentum() -> None:
    train(lambda weights: torch.optim.SGD(weights, 0.01, momentum=0.9, weight_decay=0.5))
