"""Clipping before unscale_."""

import torch

from doctor.loops import batches, classifier, loss_of

CODE = "GRADIENTS_CHANGED_WHILE_SCALED"


def train(*, unscale: bool) -> None:
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, labels in batches(4):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        if unscale:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(unscale=False)


def mended() -> None:
    train(unscale=True)
