"""A product of queries and keys that is scaled too late."""

import torch

from doctor.loops import batches, loss_of
from doctor.programs.attention import Attention

CODE = "ATTENTION_LOGITS_OVERFLOW"


def train(*, scale_first: bool) -> None:
    model = Attention(800.0, scale_first=scale_first)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for images, labels in batches(4):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(scale_first=False)


def mended() -> None:
    train(scale_first=True)
