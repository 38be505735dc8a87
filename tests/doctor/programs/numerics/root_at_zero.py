"""A distance between features that are equal."""

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
