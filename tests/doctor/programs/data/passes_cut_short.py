"""The loop begins its loader again in each step, and only ever gets its first batch."""

from itertools import islice

import torch
from torch.utils.data import DataLoader, Subset

from doctor.programs.data.samples import Training, data

CODE = "PASSES_CUT_SHORT"


def broken() -> None:
    training, loader = Training(), DataLoader(data(), batch_size=8)
    for _ in range(8):
        inputs, targets = next(iter(loader))
        training.step(inputs, targets)


def mended() -> None:
    training, loader = Training(), DataLoader(data(), batch_size=8)
    batches = iter(loader)
    for _ in range(8):
        try:
            inputs, targets = next(batches)
        except StopIteration:
            batches = iter(loader)
            inputs, targets = next(batches)
        training.step(inputs, targets)


def broken_by_a_loader_for_each_step() -> None:
    training, known = Training(), data()
    for _ in range(8):
        for inputs, targets in islice(
            DataLoader(known, batch_size=8, shuffle=True, generator=torch.Generator()), 1
        ):
            training.step(inputs, targets)


def broken_by_a_return_in_the_loop() -> None:
    training, loader = Training(), DataLoader(data(), batch_size=8)

    def epoch() -> None:
        for inputs, targets in loader:
            training.step(inputs, targets)
            return

    for _ in range(6):
        epoch()


def healthy_random_batch_for_each_step() -> None:
    training, loader = Training(), DataLoader(data(), batch_size=8, shuffle=True)
    for _ in range(20):
        training.step(*next(iter(loader)))


def healthy_one_batch_on_purpose() -> None:
    training, loader = Training(), DataLoader(data(), batch_size=8)
    batch = next(iter(loader))
    for _ in range(12):
        training.step(*batch)


def healthy_first_batch_of_an_evaluation() -> None:
    training, loader = Training(), DataLoader(data(), batch_size=8)
    for _ in range(4):
        for inputs, targets in loader:
            training.step(inputs, targets)
        training.evaluate([next(iter(loader))])


def healthy_small_subset() -> None:
    training, loader = Training(), DataLoader(Subset(data(), range(8)), batch_size=8)
    for _ in range(8):
        for inputs, targets in loader:
            training.step(inputs, targets)


def healthy_short_epochs_of_a_shuffled_loader() -> None:
    training, loader = Training(), DataLoader(data(), batch_size=8, shuffle=True)
    for _ in range(6):
        for inputs, targets in islice(loader, 2):
            training.step(inputs, targets)
