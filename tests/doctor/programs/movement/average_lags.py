"""An average of the weights with a decay for long trainings is evaluated after a short one."""

import copy

import torch
from torch import nn
from torch.nn import functional

CODE = "AVERAGE_LAGS"
STEPS = 40


def batches(count: int = STEPS):
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        inputs = torch.randn(16, 6, generator=generator)
        yield inputs, inputs[:, :3].argmax(1)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def train(decay, model: nn.Module | None = None, *, teaches: bool = False, rate: float = 0.02):
    """Train, and evaluate the average at the end.

    Args:
        decay: Returns the decay after some updates.
        model: The model.
        teaches: Whether the average gives a target in each step.
        rate: The learning rate.
    """
    model = model or network()
    average = copy.deepcopy(model).eval().requires_grad_(requires_grad=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for number, (inputs, labels) in enumerate(batches()):
        outputs = model(inputs)
        loss = functional.cross_entropy(outputs, labels)
        if teaches:
            with torch.no_grad():
                targets = average(inputs)
            loss = loss + 0.1 * functional.mse_loss(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mine, its in zip(average.parameters(), model.parameters(), strict=True):
                mine.lerp_(its, 1 - decay(number))
    with torch.no_grad():
        inputs, labels = next(batches(1))
        functional.cross_entropy(average(inputs), labels).item()
    return model


def broken() -> None:
    train(lambda _: 0.9995)


def mended() -> None:
    train(lambda _: 0.8)


def healthy_decay_that_rises() -> None:
    train(lambda number: min(0.9995, (1 + number) / (10 + number)))


def healthy_teacher_of_each_step() -> None:
    train(lambda _: 0.9995, teaches=True)


def healthy_trained_before() -> None:
    """The weights were good at first, so the average is as well."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for inputs, labels in batches(150):
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    train(lambda _: 0.9995, copy.deepcopy(model), rate=1e-4)


def healthy_average_that_is_only_kept() -> None:
    """It is evaluated after a longer training."""
    model = network()
    average = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for inputs, labels in batches():
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        with torch.no_grad():
            for mine, its in zip(average.parameters(), model.parameters(), strict=True):
                mine.lerp_(its, 0.0005)
