"""An auxiliary loss whose backward bypasses the scaler."""

import torch
from torch.nn import functional

from doctor.loops import batches, classifier, half_autocast, loss_of

CODE = "BACKWARD_NOT_SCALED"


def train(*, both: bool) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, labels in batches(4):
        optimizer.zero_grad()
        with half_autocast():
            outputs = model(images)
            loss = functional.cross_entropy(outputs, labels)
            penalty = outputs.float().square().mean()
        scaler.scale(loss).backward(retain_graph=True)
        (scaler.scale(penalty) if both else penalty).backward()
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(both=False)


def mended() -> None:
    train(both=True)


def broken_by_a_scaler_that_has_multiplied_nothing() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu")
    for images, labels in batches(4):
        optimizer.zero_grad()
        with half_autocast():
            loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        scaler.step(optimizer)  # torch raises
        scaler.update()


def healthy_with_a_first_backward_whose_gradients_are_cleared() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    functional.cross_entropy(model(torch.ones(4, 6)), torch.zeros(4, dtype=torch.long)).backward()
    for images, labels in batches(4):
        optimizer.zero_grad()
        with half_autocast():
            loss = functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def healthy_with_a_batch_that_is_trained_in_parts() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, labels in batches(4):
        with torch.no_grad(), half_autocast():
            outputs = model(images).float()
        outputs.requires_grad_()
        scaler.scale(functional.cross_entropy(outputs, labels)).backward()
        optimizer.zero_grad()
        for part, gradient in zip(images.chunk(2), outputs.grad.chunk(2), strict=True):
            with half_autocast():
                again = model(part).float()
            again.backward(gradient)
        scaler.step(optimizer)
        scaler.update()


def train_with_a_direction(direction) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    for images, labels in batches(4):
        optimizer.zero_grad()
        loss_of(model, images, labels).backward(direction(scaler))
        scaler.step(optimizer)
        scaler.update()


def broken_with_a_direction_of_one() -> None:
    def one(scaler):
        scaler.scale(torch.ones(()))
        return torch.ones(())

    train_with_a_direction(one)


def healthy_with_a_scaled_direction() -> None:
    train_with_a_direction(lambda scaler: scaler.scale(torch.ones(())))
