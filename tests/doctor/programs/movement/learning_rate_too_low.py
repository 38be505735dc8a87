"""A learning rate of 1e-8 moves no weight."""

import torch
from torch import nn

from doctor.loops import batches, classifier

CODE = "LEARNING_RATE_TOO_LOW"


def train(make, *, model=None, steps: int = 40, load: bool = False) -> None:
    model = model or classifier()
    if load:
        model.load_state_dict(classifier().state_dict())
    optimizer = make(model.parameters())
    for images, labels in batches(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def broken() -> None:
    train(lambda weights: torch.optim.Adam(weights, lr=1e-8))


def broken_by_a_rate_of_which_thirty_times_as_much_is_too_low() -> None:
    torch.manual_seed(0)
    train(lambda weights: torch.optim.Adam(weights, lr=1e-5), steps=120)


def mended() -> None:
    train(lambda weights: torch.optim.Adam(weights, lr=1e-3))


def broken_in_sgd() -> None:
    train(lambda weights: torch.optim.SGD(weights, lr=1e-6))


def healthy_fine_tuning() -> None:
    train(lambda weights: torch.optim.AdamW(weights, lr=2e-5))


def healthy_loaded_weights() -> None:
    train(lambda weights: torch.optim.Adam(weights, lr=1e-8), load=True)


def healthy_warm_up_from_almost_nothing() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1e-7, 1.0, total_iters=30)
    for images, labels in batches(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        schedule.step()


def scheduled(schedule_of, *, rate: float, steps: int = 40) -> None:
    model = classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = schedule_of(optimizer)
    for images, labels in batches(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        schedule.step()


def broken_by_a_warm_up_that_is_much_longer_than_the_run() -> None:
    scheduled(
        lambda optimizer: torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min((step + 1) / 1e5, 1.0)
        ),
        rate=1e-3,
    )


def healthy_decay_to_almost_nothing() -> None:
    scheduled(lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), rate=1e-2)


def healthy_few_steps() -> None:
    train(lambda weights: torch.optim.SGD(weights, lr=1e-6), steps=12)


def falling(optimizer):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 128)


def broken_under_a_schedule_that_falls() -> None:
    torch.manual_seed(0)
    scheduled(falling, rate=1e-4, steps=120)


def mended_under_a_schedule_that_falls() -> None:
    torch.manual_seed(0)
    scheduled(falling, rate=3e-3, steps=120)


def healthy_short_run_under_a_schedule_that_falls() -> None:
    torch.manual_seed(0)
    scheduled(falling, rate=1e-4, steps=60)


def healthy_labels_that_cannot_be_learned() -> None:
    torch.manual_seed(0)
    model = classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for images, labels in batches(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), torch.randint_like(labels, 3)).backward()
        optimizer.step()


def healthy_second_phase_at_a_low_rate() -> None:
    torch.manual_seed(0)
    model = classifier()
    for rate in (1e-2, 1e-5):
        train(lambda weights, rate=rate: torch.optim.Adam(weights, lr=rate), model=model)


def broken_by_rates_that_the_loop_sets() -> None:
    """The optimizer is gone when this returns."""
    torch.manual_seed(0)
    model = classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for step, (images, labels) in enumerate(batches(120)):
        optimizer.param_groups[0]["lr"] = 1e-4 * (1 - step / 128)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
