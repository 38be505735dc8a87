"""A learning rate that diverges, in fp32."""

import torch
from torch import nn

from doctor.loops import batches

CODE = "LEARNING_RATE_TOO_HIGH"


def train(rate: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for images, labels in batches(30):
        optimizer.zero_grad()
        targets = nn.functional.one_hot(labels, 3).float()
        nn.functional.mse_loss(model(images), targets).backward()
        optimizer.step()


def broken() -> None:
    train(20.0)


def mended() -> None:
    train(0.1)
