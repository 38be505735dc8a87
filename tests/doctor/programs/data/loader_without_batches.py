"""A loader drops its only batch, because it is not full."""

import torch
from torch.utils.data import DataLoader, Subset, SubsetRandomSampler

from doctor.programs.data.samples import Training, data

CODE = "LOADER_WITHOUT_BATCHES"


def broken() -> None:
    training, loader = Training(), DataLoader(data(), batch_size=64, drop_last=True)
    for _ in range(3):
        for inputs, targets in loader:
            training.step(inputs, targets)


def train(size: int, *, drops: bool, count: int = 48) -> None:
    training, loader = Training(), DataLoader(data(), batch_size=8, shuffle=True)
    part = Subset(data(), range(count))
    few = DataLoader(part, batch_size=size, drop_last=drops)
    for _ in range(3):
        for inputs, targets in loader:
            training.step(inputs, targets)
        training.model.eval()
        for inputs, _ in few:
            training.model(inputs).detach()
        training.model.train()


def broken_in_an_evaluation() -> None:
    train(64, drops=True)


def mended() -> None:
    train(64, drops=False)


def healthy_last_batch_that_is_dropped() -> None:
    train(20, drops=True)


def healthy_batch_of_all_samples() -> None:
    train(48, drops=True)


def healthy_data_set_without_samples() -> None:
    train(8, drops=True, count=0)


class FullShelves:
    """Batches of samples of the same class, if there are enough for a full one."""

    def __init__(self, targets: torch.Tensor, size: int) -> None:
        self.targets, self.size = targets, size

    def __iter__(self):
        for kind in self.targets.unique():
            mine = (self.targets == kind).nonzero()[:, 0]
            yield from (each.tolist() for each in mine.split(self.size) if len(each) == self.size)


def train_on_shelves(size: int, *, epochs: int = 3) -> None:
    training, samples = Training(), data()
    shelves = FullShelves(samples.tensors[1], size)
    loader = DataLoader(samples, batch_size=8, shuffle=True)
    few = DataLoader(samples, batch_sampler=shelves)
    for inputs, targets in loader:
        training.step(inputs, targets)
    for _ in range(epochs):
        for inputs, targets in few:
            training.step(inputs, targets)


def broken_by_a_batch_sampler_of_full_batches() -> None:
    train_on_shelves(40)


def broken_in_a_second_loader_of_the_same_function() -> None:
    """The first loader has gone when the second one is made."""

    def fit(samples, size: int) -> None:
        shelves = FullShelves(samples.tensors[1], size)
        for inputs, targets in DataLoader(samples, batch_sampler=shelves):
            training.step(inputs, targets)

    training = Training()
    fit(data(), 8)
    fit(data(24), 24)


def healthy_batch_sampler_of_some_full_batches() -> None:
    train_on_shelves(12)


def healthy_share_of_no_samples() -> None:
    """A part for evaluations whose share is 0."""
    training = Training()
    loader = DataLoader(data(), batch_size=8, shuffle=True)
    none = DataLoader(data(), batch_size=8, sampler=SubsetRandomSampler([]))
    for _ in range(3):
        for inputs, targets in loader:
            training.step(inputs, targets)
        for inputs, _ in none:
            training.model(inputs)
