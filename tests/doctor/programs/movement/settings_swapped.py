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
