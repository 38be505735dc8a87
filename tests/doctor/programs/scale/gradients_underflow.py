"""fp16 autocast without a loss scale, and a loss with small gradients."""

import torch
from torch.nn import functional

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


def healthy_where_a_class_never_occurs() -> None:
    model = classifier()
    with torch.no_grad():
        model[3].bias[2] = -30.0  # Its gradient is 1e-14.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for images, labels in batches(4):
        optimizer.zero_grad()
        with half_autocast():
            logits = model(images)
        functional.cross_entropy(logits.float(), labels.clamp(max=1)).backward()
        optimizer.step()
