"""Gradients clipped though one of them is infinite, without a scaler."""

import torch
from torch.nn import functional

from doctor.loops import batches, classifier

CODE = "CLIPPED_BY_INFINITE_NORM"


def train(*, guarded: bool) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, (images, labels) in enumerate(batches(5)):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        if number == 2:
            weight = model[3].weight[0, 0]  # Its slope at 0 is 1e30 / 2e-22, beyond fp32.
            loss = loss + (weight - weight.detach() + 1e-44).sqrt() * 1e30
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if norm.isfinite() or not guarded:
            optimizer.step()


def broken() -> None:
    train(guarded=False)


def mended() -> None:
    train(guarded=True)
