"""A generator and a discriminator share a scaler; the generator's loss is far too large."""

import torch
from torch import nn

from doctor.loops import batches, half_autocast

CODE = "SCALE_DRAGGED_DOWN"


def train(weight: float) -> None:
    torch.manual_seed(0)
    generator, discriminator = nn.Linear(6, 6), nn.Linear(6, 3)
    generator_optimizer = torch.optim.SGD(generator.parameters(), lr=1e-6)
    discriminator_optimizer = torch.optim.SGD(discriminator.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for images, labels in batches(16):
        generator_optimizer.zero_grad()
        discriminator_optimizer.zero_grad()
        with half_autocast():
            made = generator(images)
            loss = nn.functional.cross_entropy(discriminator(images), labels)
            second = (made - images).square().mean() * weight
        scaler.scale(loss).backward()
        scaler.scale(second).backward()
        scaler.step(discriminator_optimizer)
        scaler.step(generator_optimizer)
        scaler.update()


def broken() -> None:
    train(1e12)


def mended() -> None:
    train(1.0)
