"""fp16 autocast without a loss scale, and a loss of small gradients."""

import torch

from doctor.loops import batches, classifier, half_autocast

CODE = "GRADIENTS_UNDERFLOW"


def train(*, scaled: bool) -> None:
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    for images, _ in batches(4):
        optimizer.zero_grad()
        with half_autocast():
            loss = model(images).float().square().mean() * 1e-6
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(scaled=False)


def mended() -> None:
    train(scaled=True)
