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


def train_units(weight: float, *, scalers: int = 1, tiny: float = 1e-10) -> None:
    torch.manual_seed(0)
    models = [nn.Linear(6, 3), nn.Linear(6, 3)]
    optimizers = [
        torch.optim.SGD(models[0].parameters(), lr=1e-3 / weight),
        torch.optim.SGD(models[1].parameters(), lr=1e-3 / tiny),
    ]
    own = [torch.amp.GradScaler("cpu", init_scale=2.0**16) for _ in range(scalers)]
    for images, labels in batches(40):
        for model, optimizer, factor, scaler in zip(
            models, optimizers, (weight, tiny), (own[0], own[-1]), strict=True
        ):
            optimizer.zero_grad()
            with half_autocast():
                outputs = model(images)
            scaler.scale(nn.functional.cross_entropy(outputs.float(), labels) * factor).backward()
            scaler.step(optimizer)
        for scaler in own:
            scaler.update()


def broken_at_a_scale_that_one_of_them_can_use() -> None:
    train_units(1e8, tiny=1e-4)


def healthy_with_a_scaler_for_each() -> None:
    train_units(1e8, scalers=2, tiny=1e-4)


def healthy_at_a_low_scale_that_both_can_use() -> None:
    train_units(1e6, tiny=1.0)
