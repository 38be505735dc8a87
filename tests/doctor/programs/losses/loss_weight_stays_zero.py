"""The weight of a second term is to rise, but whole numbers are divided."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches, classifier

CODE = "LOSS_WEIGHT_STAYS_ZERO"
EPOCHS, WEIGHT = 6, 0.5


def train(weight_of, *, epochs: int = EPOCHS) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(epochs):
        for images, labels in batches(8, seed=epoch):
            outputs = model(images)
            decay = outputs.square().mean()
            loss = functional.cross_entropy(outputs, labels) + weight_of(epoch) * decay
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def broken() -> None:
    train(lambda epoch: WEIGHT * min(1, epoch // 10))


def mended() -> None:
    train(lambda epoch: WEIGHT * min(1, epoch / 10))


def in_loop(model: nn.Module, weight: float, period: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, (images, labels) in enumerate(batches(40)):
        share = step // period
        outputs = model(images)
        loss = functional.cross_entropy(outputs, labels)
        loss = loss + share * outputs.square().mean() + outputs.abs().mean() * weight
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def broken_by_a_variable_of_the_loop() -> None:
    in_loop(classifier(), 0.1, period=1000)


def healthy_variable_of_the_loop() -> None:
    in_loop(classifier(), 0.1, period=20)


def healthy_term_that_is_switched_off() -> None:
    """The weight is a setting, and is 0."""
    model, weight = classifier(), 0.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(40):
        outputs = model(images)
        loss = functional.cross_entropy(outputs, labels) + weight * outputs.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def healthy_weight_that_begins_late() -> None:
    train(lambda epoch: WEIGHT if epoch >= 4 else 0.0)


def healthy_parameters_without_a_part() -> None:
    """A product with 0 keeps parameters in the graph that have no part in the loss."""
    model, other = classifier(), nn.Linear(6, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.05)
    for step, (images, labels) in enumerate(batches(40)):
        loss = functional.cross_entropy(model(images), labels)
        if step % 2:
            loss = loss + other(images).mean()
        else:
            loss = loss + 0.0 * sum(each.sum() for each in other.parameters())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Annealer:
    """A weight that rises with the steps that it is told of."""

    def __init__(self, period: int) -> None:
        self.period, self.count = period, 0

    def tick(self) -> None:
        self.count += 1

    @property
    def share(self) -> float:
        return min(1.0, self.count // self.period)


class Trainer:
    """A training in a class, with the weight of an annealer."""

    def __init__(self, period: int) -> None:
        self.model, self.annealer = classifier(), Annealer(period)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        outputs = self.model(images)
        loss = functional.cross_entropy(outputs, labels) + self.penalty(outputs)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.annealer.tick()

    def penalty(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs.square().mean() * self.annealer.share

    def fit(self) -> None:
        for images, labels in batches(30):
            self.step(images, labels)


def broken_by_an_annealer() -> None:
    Trainer(1000).fit()


def healthy_annealer_that_gets_there() -> None:
    Trainer(20).fit()


class Switched(Trainer):
    """Its weight is a setting of 0."""

    off = 0.0

    def penalty(self, outputs: torch.Tensor) -> torch.Tensor:
        return self.off * outputs.square().mean()


def healthy_setting_of_0_beside_an_annealer() -> None:
    Switched(1000).fit()
