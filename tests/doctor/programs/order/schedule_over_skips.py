"""A scheduler that advances on every iteration, also after a skipped step."""

import torch
from torch import nn

from doctor.loops import batches, classifier, loss_of

CODE = "SCHEDULE_MOVES_OVER_SKIPS"


def train(*, guarded: bool, fused: bool = False, kind: str = "linear") -> None:
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    if kind == "linear":
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 12)
    else:
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=30)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**26)
    for images, labels in batches(12):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        if not guarded or scaler.get_scale() >= before:
            scheduler.step()


def broken() -> None:
    train(guarded=False)


def mended() -> None:
    train(guarded=True)


def broken_fused() -> None:
    train(guarded=False, fused=True)


def broken_one_cycle() -> None:
    train(guarded=False, kind="one cycle")


class Warmup:
    """A schedule outside torch."""

    def __init__(self, optimizer) -> None:
        self.optimizer, self.count = optimizer, 0

    def step(self) -> None:
        self.count += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-3 * self.count


def _own_schedule(*, guarded: bool) -> None:
    model = classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = Warmup(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**28)
    for images, labels in batches(20):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        if not guarded or scaler.get_scale() >= before:
            schedule.step()


def broken_schedule_of_its_own() -> None:
    _own_schedule(guarded=False)


def healthy_schedule_of_its_own() -> None:
    _own_schedule(guarded=True)


def healthy_fused_and_guarded() -> None:
    train(guarded=True, fused=True)


def healthy_by_the_epoch() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    for _ in range(3):
        for images, labels in batches(6):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, images, labels)).backward()
            scaler.step(optimizer)
            scaler.update()
        scheduler.step()


def healthy_one_skip() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number, (images, labels) in enumerate(batches(12)):
        optimizer.zero_grad()
        loss = loss_of(model, images, labels) * (1e6 if number == 5 else 1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
