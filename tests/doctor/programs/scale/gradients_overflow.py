"""A constant loss scale of the loop's own that is too high, and gradients that nothing checks."""

import torch
from torch.nn import functional

from doctor.loops import batches, classifier, half_autocast

CODE = "GRADIENTS_OVERFLOW"


def train(scale: float) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(4):
        optimizer.zero_grad()
        with half_autocast():
            loss = functional.cross_entropy(model(images), labels)
        (loss * scale).backward()
        for each in model.parameters():
            each.grad /= scale
        optimizer.step()


def broken() -> None:
    train(2.0**20)


def mended() -> None:
    train(1024.0)


def broken_by_the_weight_of_a_loss() -> None:
    model = classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    for images, labels in batches(4):
        optimizer.zero_grad()
        with half_autocast():
            outputs = model(images)
        (3e6 * functional.cross_entropy(outputs.float(), labels)).backward()
        optimizer.step()


def healthy_with_a_check() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scale = 2.0**20
    for images, labels in batches(12):
        optimizer.zero_grad()
        with half_autocast():
            loss = functional.cross_entropy(model(images), labels)
        (loss * scale).backward()
        if not all(each.grad.isfinite().all() for each in model.parameters()):
            scale /= 4
            continue
        for each in model.parameters():
            each.grad /= scale
        optimizer.step()
