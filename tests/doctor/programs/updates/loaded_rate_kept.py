"""Fine-tuning loads the optimizer of the training before, with its last learning rate."""

import copy

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau

from doctor.loops import batches, classifier

CODE = "LOADED_RATE_KEPT"
STEPS = 25


def train(model, optimizer, scheduler=None) -> None:
    for images, labels in batches(STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if scheduler:
            scheduler.step()


def again(*, first=0.01, second=0.01, planned=True, then=lambda optimizer: None, kind=None) -> None:
    """Train twice; `then(optimizer)` sets what follows the load, and may return a scheduler."""
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=first)
    train(model, optimizer, CosineAnnealingLR(optimizer, STEPS, 1e-5) if planned else None)
    state = copy.deepcopy(optimizer.state_dict())
    if kind is None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=second)
    else:
        optimizer = kind(model.parameters())
    optimizer.load_state_dict(state)
    train(model, optimizer, then(optimizer))


def set_again(optimizer) -> None:
    for group in optimizer.param_groups:
        group.update(lr=0.01)


def broken() -> None:
    again()


def mended() -> None:
    again(then=set_again)


def broken_with_a_rate_that_equals_the_default() -> None:
    again(second=1e-3)


def broken_by_a_larger_rate() -> None:
    """The program is run again with a smaller rate, which the load undoes."""
    again(first=0.01, second=1e-3, planned=False)


def healthy_resume_at_the_same_rate() -> None:
    again(planned=False)


def healthy_resume_of_a_rate_that_was_lowered_by_hand() -> None:
    again(first=1e-3, second=1e-2, planned=False)


def healthy_optimizer_that_gets_its_rate_from_the_state() -> None:
    again(kind=torch.optim.AdamW)


def healthy_scheduler_that_waits() -> None:
    def waiting(optimizer) -> None:
        optimizer.waits = ReduceLROnPlateau(optimizer)
        optimizer.after_evaluation = optimizer.waits.step  # which this program ends before

    again(then=waiting)


def decayed_by_hand(model, optimizer) -> None:
    for images, labels in batches(STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] *= 0.8


def by_hand(*, second: float, then=lambda optimizer: None) -> None:
    """Train twice with a rate that the loop lowers, at first from 0.01."""
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    decayed_by_hand(model, optimizer)
    state = copy.deepcopy(optimizer.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=second)
    optimizer.load_state_dict(state)
    then(optimizer)
    decayed_by_hand(model, optimizer)


def broken_by_a_rate_that_falls_on() -> None:
    by_hand(second=0.003)


def healthy_rate_that_is_set_after_the_load() -> None:
    by_hand(second=0.003, then=set_again)


def healthy_resume_of_a_rate_that_falls_on() -> None:
    by_hand(second=0.01)


def tasks(second_sign: float, *, then=lambda optimizer: None) -> None:
    """Fit a sum of the inputs with a rate that the loop lowers, then `second_sign` times it."""
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for sign, shrinks in ((1.0, 0.93), (second_sign, 1.0)):
        for images, _ in batches(60 if shrinks < 1 else STEPS):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(images), sign * images.sum(1, keepdim=True)).backward()
            optimizer.step()
            for group in optimizer.param_groups:
                group["lr"] *= shrinks
        state = copy.deepcopy(optimizer.state_dict())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        optimizer.load_state_dict(state)
        then(optimizer)


def broken_for_another_task() -> None:
    tasks(-1.0)


def healthy_same_task_at_the_lowered_rate() -> None:
    tasks(1.0)


def healthy_another_task_at_the_given_rate() -> None:
    tasks(-1.0, then=lambda optimizer: optimizer.param_groups[0].update(lr=0.1))
