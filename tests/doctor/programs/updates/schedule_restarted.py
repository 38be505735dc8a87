"""A loop resumes from a checkpoint with the optimizer, and without the scheduler."""

import copy

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR

from doctor.loops import batches, classifier

CODE = "SCHEDULE_RESTARTED"
STEPS = 40


def cosine(optimizer):
    return CosineAnnealingLR(optimizer, STEPS)


def train(model, optimizer, scheduler, count: int) -> None:
    for images, labels in batches(count):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        scheduler.step()


def resume(*, restored: bool, make=cosine, kind=torch.optim.AdamW, first: int = 25) -> None:
    model = classifier()
    optimizer = kind(model.parameters(), lr=0.01)
    scheduler = make(optimizer)
    train(model, optimizer, scheduler, first)
    saved = copy.deepcopy(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
        }
    )
    model = classifier()
    model.load_state_dict(saved["model"])
    optimizer = kind(model.parameters(), lr=0.01)
    if restored:
        scheduler = make(optimizer)
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
    else:
        optimizer.load_state_dict(saved["optimizer"])
        scheduler = make(optimizer)
    train(model, optimizer, scheduler, STEPS - first)


def broken() -> None:
    resume(restored=False)


def mended() -> None:
    resume(restored=True)


def broken_with_a_decay_of_steps() -> None:
    resume(restored=False, make=lambda each: LambdaLR(each, lambda step: 0.9**step))


def broken_with_one_cycle() -> None:
    resume(restored=False, make=lambda each: OneCycleLR(each, 0.01, total_steps=STEPS + 2))


def broken_with_momentum() -> None:
    resume(restored=False, kind=lambda params, lr: torch.optim.NAdam(params, lr=lr))


def healthy_state_that_is_moved_to_a_device() -> None:
    """Accelerate loads the optimizer's own state into it, after a warm-up has set its rate to 0."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = LambdaLR(optimizer, lambda step: min(1.0, step / STEPS))
    optimizer.load_state_dict(optimizer.state_dict())
    train(model, optimizer, scheduler, STEPS)


def healthy_second_phase_with_a_schedule_of_its_own() -> None:
    """A new optimizer without a loaded state begins a new phase."""
    model = classifier()
    for _ in range(2):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        train(model, optimizer, cosine(optimizer), 20)


def healthy_snapshot_of_the_optimizer_that_is_put_back() -> None:
    """Such as the search for a learning rate, before training begins."""
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, LambdaLR(optimizer, lambda step: 1.1**step), 8)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    train(model, optimizer, cosine(optimizer), 20)


def healthy_position_that_is_set_by_hand() -> None:
    def make(optimizer):
        scheduler = cosine(optimizer)
        if optimizer.state:
            scheduler.last_epoch = 25
        return scheduler

    resume(restored=False, make=make)
