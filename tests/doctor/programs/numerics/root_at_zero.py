"""A distance between features that are equal."""

import torch
from torch.nn import functional

from doctor.loops import classifier, plain_steps

CODE = "ROOT_AT_ZERO"


def train(eps: float) -> None:
    def loss_function(outputs, labels):
        distance = (outputs - outputs.detach()).square().sum(1)
        return functional.cross_entropy(outputs, labels) + (distance + eps).sqrt().mean()

    plain_steps(classifier(), loss_function)


def broken() -> None:
    train(0.0)


def mended() -> None:
    train(1e-6)


def broken_by_an_angle_of_zero() -> None:
    def loss_function(outputs, _):
        cosine = functional.cosine_similarity(outputs, outputs.detach(), dim=1).clamp(-1, 1)
        return torch.where(cosine > 0.99, cosine * 0 + 1, cosine).acos().mean()

    plain_steps(classifier(), loss_function)
