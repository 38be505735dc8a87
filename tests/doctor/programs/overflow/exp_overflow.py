"""A variance computed from its logarithm in fp16."""

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from doctor.loops import Around, batches, classifier, half_autocast, plain_steps

CODE = "EXP_OVERFLOW"


def train(*, clamped: bool) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for images, labels in batches(4):
        optimizer.zero_grad()
        with half_autocast():
            outputs = model(images)
            logarithm = outputs.abs().half() * 40
            variance = (logarithm.clamp(max=8) if clamped else logarithm).mul(1).half()
            loss = functional.cross_entropy(outputs, labels) + _exp(variance).mean() * 1e-3
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def _exp(value: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", enabled=False):
        return value.exp().float()


def broken() -> None:
    train(clamped=False)


def mended() -> None:
    train(clamped=True)


def broken_in_a_reentrant_checkpoint_of_the_loop() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)

    def block(images: torch.Tensor) -> torch.Tensor:
        return model(images) + _exp(images.abs().half() * 40).mean()

    for images, labels in batches(6):
        optimizer.zero_grad()
        with half_autocast():
            outputs = checkpoint(block, images.requires_grad_(), use_reentrant=True)
            loss = functional.cross_entropy(outputs.float(), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def _log_cosh(outputs: torch.Tensor, factor: float) -> torch.Tensor:
    difference = outputs - 100
    return torch.log(torch.cosh(difference * factor)).mean() * 1e-3


def of_differences(factor: float) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for images, _ in batches(4):
        optimizer.zero_grad()
        _log_cosh(model(images), factor).backward()
        optimizer.step()


def broken_below_zero() -> None:
    of_differences(1.0)


def healthy_below_zero() -> None:
    of_differences(0.5)


def of_powers(power) -> None:
    plain_steps(Around(power), functional.cross_entropy)


def broken_by_a_power_of_ten() -> None:
    of_powers(lambda features: 10.0 ** (features * 100))


def broken_in_place() -> None:
    of_powers(lambda features: (features * 1000).exp_())


def healthy_power_of_ten() -> None:
    of_powers(lambda features: 10.0 ** features.clamp(max=2))


def healthy_power_of_a_number_below_one() -> None:
    of_powers(lambda features: 0.5 ** (features.abs() * 1000))
