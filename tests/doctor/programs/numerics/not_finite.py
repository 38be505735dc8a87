"""The loss of one batch overflows fp32, and the step is applied to the weights."""

import torch

from doctor.loops import batches, classifier

CODE = "NOT_FINITE"


def train(*, guarded: bool) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, (images, _) in enumerate(batches(6)):
        optimizer.zero_grad()
        factor = 1e12 if number == 3 else 1.0
        loss = (model(images) * factor).pow(4).mean()
        if guarded and not torch.isfinite(loss):
            continue
        loss.backward()
        optimizer.step()


def broken() -> None:
    train(guarded=False)


def mended() -> None:
    train(guarded=True)
