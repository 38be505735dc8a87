"""A loader that shuffles gives the same order of samples in each epoch."""

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, Sampler

from doctor.programs.data.samples import COUNT, Training, data, samples

CODE = "ORDER_REPEATS"


def train(loader_of, *, epochs: int = 3, sampler=None) -> None:
    training = Training()
    for epoch in range(epochs):
        loader = loader_of(epoch)
        if sampler is not None:
            sampler.set_epoch(epoch)
        for inputs, targets in loader:
            training.step(inputs, targets)


def distributed() -> DistributedSampler:
    return DistributedSampler(data(), num_replicas=2, rank=0, shuffle=True)


def broken() -> None:
    loader = DataLoader(data(), batch_size=8, sampler=distributed())
    train(lambda _: loader)


def mended() -> None:
    sampler = distributed()
    loader = DataLoader(data(), batch_size=8, sampler=sampler)
    train(lambda _: loader, sampler=sampler)


def whole(**settings) -> DataLoader:
    """Return a loader with one batch in each epoch."""
    sampler = DistributedSampler(data(), num_replicas=1, rank=0)
    return DataLoader(data(), sampler=sampler, **settings)


def broken_in_one_batch_that_leaves_samples_out() -> None:
    loader = whole(batch_size=COUNT - 8, drop_last=True)
    train(lambda _: loader, epochs=8)


def healthy_one_batch_of_other_samples_each_time() -> None:
    loader = whole(batch_size=COUNT - 8, drop_last=True)
    train(lambda _: loader, epochs=8, sampler=loader.sampler)


def healthy_one_batch_of_all_samples() -> None:
    loader = whole(batch_size=COUNT)
    train(lambda _: loader, epochs=8)


def broken_by_a_generator_that_each_epoch_makes() -> None:
    def loader_of(epoch: int) -> DataLoader:
        del epoch
        generator = torch.Generator().manual_seed(7)
        return DataLoader(data(), batch_size=8, shuffle=True, generator=generator)

    train(loader_of)


def broken_by_a_seed_in_each_epoch() -> None:
    loader = DataLoader(data(), batch_size=8, shuffle=True)

    def loader_of(epoch: int) -> DataLoader:
        del epoch
        torch.manual_seed(3)
        return loader

    train(loader_of)


def permuted(permutation_of, epochs: int = 4) -> None:
    inputs, targets = samples()
    training = Training()
    for epoch in range(epochs):
        order = permutation_of(epoch)
        for start in range(0, COUNT, 8):
            batch = order[start : start + 8]
            training.step(inputs[batch], targets[batch])


def broken_by_a_permutation_of_the_loop() -> None:
    permuted(lambda _: torch.randperm(COUNT, generator=torch.Generator().manual_seed(0)))


def broken_by_a_seed_before_a_permutation() -> None:
    def order_of(epoch: int) -> torch.Tensor:
        del epoch
        torch.manual_seed(0)
        return torch.randperm(COUNT)

    permuted(order_of)


def broken_by_a_seed_of_numpy() -> None:
    def order_of(epoch: int) -> np.ndarray:
        del epoch
        np.random.seed(0)  # noqa: NPY002  (as programs do)
        return np.random.permutation(COUNT)  # noqa: NPY002

    permuted(order_of)


def broken_by_a_generator_of_numpy_in_each_epoch() -> None:
    inputs, targets = samples()
    training = Training()
    for _ in range(4):
        order = np.random.RandomState(3).permutation(COUNT)
        for start in range(0, COUNT, 8):
            batch = order[start : start + 8]
            training.step(inputs[batch], targets[batch])


def train_on_tensors_of_orders(seed_of) -> None:
    inputs, targets = samples()
    training = Training()
    for epoch in range(4):
        order = np.random.RandomState(seed_of(epoch)).permutation(COUNT)
        for start in range(0, COUNT, 8):
            batch = torch.from_numpy(order[start : start + 8])
            training.step(inputs[batch], targets[batch])


def broken_by_orders_of_numpy_as_tensors() -> None:
    train_on_tensors_of_orders(lambda epoch: 3)


def healthy_orders_of_numpy_as_tensors() -> None:
    train_on_tensors_of_orders(lambda epoch: 3 + epoch)


def healthy_one_permutation_for_all_epochs() -> None:
    order = torch.randperm(COUNT)
    permuted(lambda _: order)


def healthy_seed_of_the_epoch() -> None:
    def order_of(epoch: int) -> np.ndarray:
        np.random.seed(epoch)  # noqa: NPY002
        return np.random.permutation(COUNT)  # noqa: NPY002

    permuted(order_of)


def healthy_generator_that_goes_on() -> None:
    generator = torch.Generator().manual_seed(0)
    sampler = RandomSampler(data(), generator=generator)
    loader = DataLoader(data(), batch_size=8, sampler=sampler)
    train(lambda _: loader)


def healthy_order_without_shuffle() -> None:
    loader = DataLoader(data(), batch_size=8)
    train(lambda _: loader)


def healthy_seed_for_each_of_several_trainings() -> None:
    for _ in range(3):
        torch.manual_seed(0)
        loader = DataLoader(data(), batch_size=8, shuffle=True)
        train(lambda _, loader=loader: loader, epochs=2)


def healthy_order_of_an_evaluation() -> None:
    """The evaluation sets its seed, draws a part of the data, and restores the state."""
    training, loader = Training(), DataLoader(data(), batch_size=8, shuffle=True)
    for _ in range(4):
        for inputs, targets in loader:
            training.step(inputs, targets)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            part = DataLoader(data(), batch_size=8, shuffle=True)
            training.evaluate([next(iter(part))])


class Order(Sampler):
    """A sampler of its own, which is told the number of the epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return COUNT

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.epoch)
        return iter(torch.randperm(COUNT, generator=generator).tolist())


def broken_by_a_sampler_that_is_not_told_the_epoch() -> None:
    loader = DataLoader(data(), batch_size=8, sampler=Order())
    train(lambda _: loader)


def healthy_sampler_that_is_told_the_epoch() -> None:
    sampler = Order()
    loader = DataLoader(data(), batch_size=8, sampler=sampler)
    train(lambda _: loader, sampler=sampler)


def healthy_order_of_a_sort_in_each_epoch() -> None:
    inputs, targets = samples()
    training = Training()
    for _ in range(4):
        order = inputs.norm(dim=1).argsort()
        for start in range(0, COUNT, 8):
            batch = order[start : start + 8]
            training.step(inputs[batch], targets[batch])


def train_on_arrays(seed_of, *, evaluates: bool = False) -> None:
    """The rows are those of arrays; `seed_of(epoch)` is the seed of their order."""
    training = Training()
    inputs, targets = (each.numpy() for each in samples())
    for epoch in range(4):
        order = np.random.default_rng(seed_of(epoch)).permutation(COUNT)
        if evaluates:
            with torch.no_grad():
                training.model(torch.from_numpy(inputs[order[:8]]))
            order = np.arange(COUNT)
        for part in np.split(order, 4):
            training.step(torch.from_numpy(inputs[part]), torch.from_numpy(targets[part]))


def broken_by_an_order_of_arrays() -> None:
    train_on_arrays(lambda epoch: 3)


def healthy_seed_of_the_epoch_for_arrays() -> None:
    train_on_arrays(lambda epoch: 3 + epoch)


def healthy_seed_of_a_part_for_evaluation() -> None:
    train_on_arrays(lambda epoch: 3, evaluates=True)
