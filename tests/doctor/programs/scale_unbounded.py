"""A loss so small that no loss scale is too large."""

import torch
from torch import nn

from doctor.loops import batches, half_autocast

CODE = "SCALE_UNBOUNDED"


def train(factor: float) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=1)
    for images, labels in batches(26):
        optimizer.zero_grad()
        with half_autocast():
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss * factor).backward()
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(1e-12)


def mended() -> None:
    train(1.0)
