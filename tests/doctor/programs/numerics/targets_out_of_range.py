"""A binary loss gets masks with values up to 255."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches, half_autocast

CODE = "TARGETS_OUT_OF_RANGE"


def train(largest: float, criterion) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for images, labels in batches(8):
        optimizer.zero_grad()
        with half_autocast():
            outputs = model(images)[:, 0]
            loss = criterion(outputs, (labels > 0).float() * largest)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(255.0, functional.binary_cross_entropy_with_logits)


def mended() -> None:
    train(1.0, functional.binary_cross_entropy_with_logits)


def broken_in_a_module() -> None:
    train(255.0, nn.BCEWithLogitsLoss())


def healthy_with_smoothed_targets() -> None:
    train(0.9, nn.BCEWithLogitsLoss())
