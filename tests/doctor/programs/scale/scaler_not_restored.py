"""A run that resumes from a checkpoint without the scaler's state."""

import torch

from doctor.loops import batches, classifier, loss_of

CODE = "SCALER_STATE_NOT_RESTORED"


def train(model, optimizer, scaler, count: int) -> None:
    for images, labels in batches(count):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.step(optimizer)
        scaler.update()


def resume(*, with_scaler: bool) -> None:
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    train(model, optimizer, scaler, 3)
    saved = {"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer.load_state_dict(saved["optimizer"])
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    if with_scaler:
        scaler.load_state_dict(saved["scaler"])
    train(model, optimizer, scaler, 3)


def broken() -> None:
    resume(with_scaler=False)


def mended() -> None:
    resume(with_scaler=True)


def broken_by_one_for_each_epoch() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        train(model, optimizer, torch.amp.GradScaler("cpu", init_scale=1024.0), 3)


def healthy_with_one_for_each_fold() -> None:
    for _ in range(2):
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        train(model, optimizer, torch.amp.GradScaler("cpu", init_scale=1024.0), 3)
