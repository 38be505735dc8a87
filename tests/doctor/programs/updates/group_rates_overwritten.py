"""A warm-up by hand writes the rate of the head into the group of the body, too."""

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

from doctor.loops import batches, classifier

CODE = "GROUP_RATES_OVERWRITTEN"
COUNT, HEAD, BODY = 30, 0.02, 2e-4


def train(write=lambda step, group: None, *, make=None, body: float = BODY, count=COUNT) -> None:
    """Train; `write(step, group)` sets the rate of a group, or the scheduler of `make` does."""
    model = classifier()
    groups = [
        {"params": model[:3].parameters(), "lr": body},
        {"params": model[3].parameters(), "lr": HEAD},
    ]
    optimizer = torch.optim.AdamW(groups)
    scheduler = make and make(optimizer)
    for step, (images, labels) in enumerate(batches(count)):
        for group in optimizer.param_groups:
            write(step, group)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if scheduler:
            scheduler.step()


def same(step: int, group: dict) -> None:
    group["lr"] = HEAD * (1 - step / COUNT)


def own(step: int, group: dict) -> None:
    group.setdefault("own", group["lr"])
    group.update(lr=group["own"] * (1 - step / COUNT))


def broken() -> None:
    train(same)


def mended() -> None:
    train(own)


def broken_by_one_cycle() -> None:
    train(make=lambda optimizer: OneCycleLR(optimizer, 0.02, total_steps=COUNT))


def healthy_cycles_of_their_own() -> None:
    train(make=lambda optimizer: OneCycleLR(optimizer, [BODY, HEAD], total_steps=COUNT))


def healthy_factor_of_a_scheduler() -> None:
    train(make=lambda optimizer: LambdaLR(optimizer, lambda step: 1 - step / COUNT))


def healthy_groups_that_differ_in_weight_decay() -> None:
    train(same, body=HEAD)


def healthy_test_of_rates_before_the_training() -> None:
    """The first steps try one rate for all groups, and the others use their own."""

    def tried(step: int, group: dict) -> None:
        group.setdefault("own", group["lr"])
        group.update(lr=1e-5 * 1.1**step if step < 10 else group["own"])

    train(tried, count=40)


def healthy_body_that_begins_later() -> None:
    train(lambda step, group: group.update(lr=HEAD) if step > 2 else None, body=0.0)
