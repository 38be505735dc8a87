"""The accuracy of a bf16 model, computed with NumPy."""

import torch
from torch.nn import functional

from doctor.loops import batches, classifier

CODE = "BF16_TO_NUMPY"


def train(*, cast: bool) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = model(images)
        guesses = outputs.detach().float() if cast else outputs.detach()
        assert (guesses.numpy().argmax(1) == labels.numpy()).mean() >= 0
        functional.cross_entropy(outputs.float(), labels).backward()
        optimizer.step()


def broken() -> None:
    train(cast=False)


def mended() -> None:
    train(cast=True)
