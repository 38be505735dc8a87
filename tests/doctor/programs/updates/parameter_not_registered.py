"""An operator on an nn.Parameter returns a tensor that is no parameter."""

import torch
from torch import nn

from doctor.loops import batches, classifier

CODE = "PARAMETER_NOT_REGISTERED"


class Shifted(nn.Module):
    """A classifier that adds a shift to its outputs; `make` returns the shift."""

    def __init__(self, make) -> None:
        super().__init__()
        self.net = classifier()
        self.shift = make()

    def forward(self, images):
        return self.net(images) + self.shift


class Repeated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = classifier()
        self.places = nn.Parameter(torch.zeros(1, 1)).repeat(1, 6)

    def forward(self, images):
        return self.net(images + self.places)


class Remembering(nn.Module):
    """A module that keeps results of its last call."""

    def __init__(self) -> None:
        super().__init__()
        self.net = classifier()

    def forward(self, images):
        self.outputs = self.net(images)
        self.penalty = self.outputs.square().mean()
        return self.outputs


def train(model, *others, after=None) -> None:
    optimizer = torch.optim.SGD([*model.parameters(), *others], lr=0.05)
    for images, labels in batches(10):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if after is not None:
            after()


def scaled():
    return nn.Parameter(torch.ones(3)) + 0.1


def broken() -> None:
    train(Repeated())


def mended() -> None:
    train(Shifted(lambda: nn.Parameter(torch.zeros(3))))


def broken_by_a_sum() -> None:
    train(Shifted(scaled))


def broken_by_a_tensor_with_gradients() -> None:
    train(Shifted(lambda: torch.zeros(3, requires_grad=True)))


def healthy_tensor_that_the_optimizer_gets() -> None:
    model = Shifted(lambda: torch.zeros(3, requires_grad=True))
    train(model, model.shift)


def healthy_tensor_that_the_loop_updates() -> None:
    model = Shifted(lambda: torch.zeros(3, requires_grad=True))

    def update() -> None:
        model.shift.data -= 0.05 * model.shift.grad
        model.shift.grad = None

    train(model, after=update)


def healthy_results_of_the_last_call() -> None:
    train(Remembering())


def healthy_view_of_a_parameter() -> None:
    """The attribute shows a parameter that the optimizer has."""
    model = Shifted(lambda: torch.zeros(3))
    model.shift = model.net[3].bias.view(3)
    train(model)


def healthy_constant() -> None:
    train(Shifted(lambda: torch.ones(3)))
