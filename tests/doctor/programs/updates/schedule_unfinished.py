"""A schedule planned in steps, and moved after each epoch."""

import torch
from torch import nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    SequentialLR,
)
from torch.utils.data import DataLoader, TensorDataset

from doctor.loops import batches, classifier

CODE = "SCHEDULE_UNFINISHED"
EPOCHS, LENGTH = 8, 10


def train(make, *, epochs: int = EPOCHS, by: str = "epoch", passes: int = 1) -> None:
    """Train; `by` says when the scheduler moves: epoch, step, place (in the epoch) or position."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = make(optimizer)
    for epoch in range(epochs):
        for place, (images, labels) in enumerate(batches(LENGTH, seed=epoch)):
            loss = nn.functional.cross_entropy(model(images), labels)
            (loss / passes).backward()
            if (place + 1) % passes == 0:
                optimizer.step()
                optimizer.zero_grad()
                if by == "step":
                    scheduler.step()
            if by == "place":
                scheduler.step(place / LENGTH)
            if by == "position":
                scheduler.step(epoch + place / LENGTH)
        if by == "epoch":
            scheduler.step()


def one_cycle(optimizer):
    return OneCycleLR(optimizer, 0.1, epochs=EPOCHS, steps_per_epoch=LENGTH)


def warm_up_and_cosine(optimizer):
    warm = LinearLR(optimizer, 0.1, total_iters=8)
    cosine = CosineAnnealingLR(optimizer, EPOCHS * LENGTH - 8)
    return SequentialLR(optimizer, [warm, cosine], [8])


def broken() -> None:
    train(one_cycle)


def mended() -> None:
    train(one_cycle, by="step")


def broken_in_two_parts() -> None:
    train(warm_up_and_cosine)


def broken_by_a_plan_in_backward_passes() -> None:
    train(lambda optimizer: CosineAnnealingLR(optimizer, EPOCHS * LENGTH), by="step", passes=2)


def broken_by_a_position_in_the_epoch() -> None:
    train(lambda optimizer: CosineAnnealingWarmRestarts(optimizer, EPOCHS), by="place")


def train_on_a_loader(make, *, epochs: int = 4) -> None:
    """Train; `make(optimizer, data, loader)` returns the scheduler, which moves in each step."""
    images, labels = map(torch.cat, zip(*batches(6), strict=True))
    data = TensorDataset(images, labels)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = make(optimizer, data, loader)
    for _ in range(epochs):
        for inputs, classes in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), classes).backward()
            optimizer.step()
            scheduler.step()


def broken_by_a_plan_in_samples() -> None:
    train_on_a_loader(lambda optimizer, data, _: CosineAnnealingLR(optimizer, 4 * len(data)))


def healthy_plan_in_batches() -> None:
    train_on_a_loader(lambda optimizer, _, loader: CosineAnnealingLR(optimizer, 4 * len(loader)))


def healthy_end_of_a_loader_before_the_plan_is_over() -> None:
    train_on_a_loader(lambda optimizer, _, loader: CosineAnnealingLR(optimizer, 30 * len(loader)))


def healthy_end_before_the_plan_is_over() -> None:
    """An early stop, or a look at the first epochs of a long run."""
    train(lambda optimizer: CosineAnnealingLR(optimizer, 200))
    train(lambda optimizer: CosineAnnealingLR(optimizer, 10_000), by="step")


def healthy_restarts_in_each_epoch() -> None:
    train(lambda optimizer: CosineAnnealingWarmRestarts(optimizer, 1), by="place")


def healthy_positions() -> None:
    train(lambda optimizer: CosineAnnealingWarmRestarts(optimizer, EPOCHS), by="position")


def healthy_plan_in_steps_of_two_passes() -> None:
    train(lambda optimizer: CosineAnnealingLR(optimizer, 40), by="step", passes=2)


def healthy_models_one_after_the_other() -> None:
    """Each stops at a quarter of its plan, and all together make as many steps as one plan has."""
    for _ in range(4):
        train(lambda optimizer: CosineAnnealingLR(optimizer, 320), by="step")


def down_to_zero(total: int):
    """Make a schedule by a function, after a warm-up of 4 moves."""

    def factor(move: int) -> float:
        return min(1.0, (move + 1) / 4, max(0.0, (total - move) / (total - 4)))

    return lambda optimizer: LambdaLR(optimizer, factor)


def broken_function_in_steps() -> None:
    train(down_to_zero(EPOCHS * LENGTH))


def broken_function_in_backward_passes() -> None:
    """As many as whole windows have; the last one of each epoch is cut short."""
    train(down_to_zero(EPOCHS * 4 * 3), by="step", passes=3)


def healthy_function_in_epochs() -> None:
    train(down_to_zero(EPOCHS))


def healthy_function_of_a_list() -> None:
    factors = [0.5, *[0.9**each for each in range(EPOCHS)]]
    train(lambda optimizer: LambdaLR(optimizer, factors.__getitem__))


def healthy_function_that_never_ends() -> None:
    train(lambda optimizer: LambdaLR(optimizer, lambda move: (1 + move) ** -0.5))


def healthy_function_of_a_longer_run() -> None:
    train(down_to_zero(1000), by="step")
