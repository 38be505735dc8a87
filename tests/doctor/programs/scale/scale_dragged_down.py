"""A maker whose loss is far too large, under the scaler of the judge."""

import torch
from torch import nn

from doctor.loops import batches, half_autocast

CODE = "SCALE_DRAGGED_DOWN"


def train(weight: float) -> None:
    torch.manual_seed(0)
    maker, judge = nn.Linear(6, 6), nn.Linear(6, 3)
    makes = torch.optim.SGD(maker.parameters(), lr=1e-6)
    judges = torch.optim.SGD(judge.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for images, labels in batches(16):
        makes.zero_grad()
        judges.zero_grad()
        with half_autocast():
            made = maker(images)
            loss = nn.functional.cross_entropy(judge(images), labels)
            second = (made - images).square().mean() * weight
        scaler.scale(loss).backward()
        scaler.scale(second).backward()
        scaler.step(judges)
        scaler.step(makes)
        scaler.update()


def broken() -> None:
    train(1e12)


def mended() -> None:
    train(1.0)
