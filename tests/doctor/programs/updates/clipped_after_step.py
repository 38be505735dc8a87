"""The clipping is below the step, where it has no effect."""

import torch
from torch import nn

from doctor.loops import batches, classifier, loss_of

CODE = "CLIPPED_AFTER_STEP"


def train(*, late: bool, scaled: bool = True) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0, enabled=scaled)
    for images, labels in batches(6):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        if not late:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        if late:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.update()


def broken() -> None:
    train(late=True)


def mended() -> None:
    train(late=False)


def broken_without_a_scaler() -> None:
    train(late=True, scaled=False)


def broken_by_value() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        nn.utils.clip_grad_value_(model.parameters(), 1e-3)


def healthy_norm_that_is_only_logged() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        nn.utils.clip_grad_norm_(model.parameters(), float("inf"))


def healthy_second_optimizer_after_the_first() -> None:
    first, second = nn.Linear(6, 6), classifier()
    both = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (first, second)]
    for images, labels in batches(6):
        for each in both:
            each.zero_grad()
        nn.functional.cross_entropy(second(first(images)), labels).backward()
        for model, optimizer in zip((first, second), both, strict=True):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
