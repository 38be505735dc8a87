"""A learning rate at which training diverges in fp32 too."""

import torch
from torch import nn

from doctor.loops import batches, half_autocast

CODE = "LEARNING_RATE_TOO_HIGH"


def train(rate: float, decay: float = 0.0) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, weight_decay=decay)
    for images, labels in batches(30):
        optimizer.zero_grad()
        targets = nn.functional.one_hot(labels, 3).float()
        nn.functional.mse_loss(model(images), targets).backward()
        optimizer.step()


def broken() -> None:
    train(20.0)


def mended() -> None:
    train(0.1)


def train_in_fp16(
    rate: float, kind=torch.optim.SGD, *, scaled: bool = True, scale=256.0, weight=1.0
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 3))
    optimizer = kind(model.parameters(), lr=rate)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=scaled)
    for number, (images, labels) in enumerate(batches(12)):
        optimizer.zero_grad()
        with half_autocast():
            loss = nn.functional.cross_entropy(model(images), labels)
        loss = loss * weight if number else loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def broken_in_one_step_under_fp16_autocast() -> None:
    train_in_fp16(5000.0)


def broken_in_one_step_of_adam_under_fp16_autocast() -> None:
    train_in_fp16(100.0, torch.optim.Adam)


def broken_in_one_step_under_fp16_autocast_without_a_scaler() -> None:
    train_in_fp16(5000.0, scaled=False)


def broken_while_the_loss_scale_is_too_high() -> None:
    train_in_fp16(5000.0, scale=2.0**15, weight=64.0)


def broken_in_one_step_that_makes_the_parameters_few_times_larger() -> None:
    train_in_fp16(0.1, weight=2000.0)


def healthy_under_fp16_autocast() -> None:
    train_in_fp16(0.1)


def train_without_overflow(rate: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    for images, labels in batches(40):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()


def broken_without_overflow() -> None:
    train_without_overflow(200.0)


def healthy_in_bf16() -> None:
    train_without_overflow(0.1)


def diverge(rate, decay: float) -> None:
    """Train at a learning rate that is a function of the step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate(0), weight_decay=decay)
    for number, (images, labels) in enumerate(batches(150)):
        optimizer.param_groups[0]["lr"] = rate(number)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def broken_by_a_weight_decay() -> None:
    diverge(lambda number: 0.5, decay=5.0)


def broken_beside_a_weight_decay() -> None:
    train(20.0, decay=0.1)


def broken_by_a_warmup_that_divides_by_zero_almost() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(step, 1e-50) ** -0.5)
    scaler = torch.amp.GradScaler("cpu")
    for images, labels in batches(12):
        optimizer.zero_grad()
        with half_autocast():
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()


def accumulate(rate: float, parts: int, count: int = 24) -> None:
    """Train with several backward passes for a step, at rates that fall to 0."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
    model.append(nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    warm = 5
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, 1.0) * (1 - step / count)
    )
    given = batches(count * parts)
    for _ in range(count):
        for _ in range(parts):
            images, labels = next(given)
            nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def broken_by_losses_that_are_added_up() -> None:
    """All units of a layer die, so the loss comes back to that of a guess."""
    accumulate(1.0, parts=8, count=40)


def healthy_losses_that_are_added_up() -> None:
    """The rate is chosen for the sum of the losses."""
    accumulate(0.01, parts=8)


def healthy_losses_that_are_added_up_without_progress() -> None:
    accumulate(1e-4, parts=2, count=16)
