"""A large projection to a vocabulary of an odd size."""

import torch
from torch import nn

from doctor.loops import batches

CODE = "DIMENSIONS_NOT_ALIGNED"


def train(size: int, *, half: bool = True) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, size))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()


def broken() -> None:
    train(2003)


def mended() -> None:
    train(2008)


def healthy_in_fp32() -> None:
    train(2003, half=False)


def healthy_in_a_small_layer() -> None:
    train(101)
