"""An iterable data set that gives all of its samples in each worker."""

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from doctor.programs.data.samples import Training, samples

CODE = "SAMPLES_REPEATED_BY_WORKERS"


class Stream(IterableDataset):
    """All samples, or the part of a worker, in an order that it draws."""

    def __init__(self, *, is_split: bool, shuffles: bool = False, times: int = 1) -> None:
        self.inputs, self.targets = samples()
        self.is_split, self.shuffles, self.times = is_split, shuffles, times

    def __iter__(self):
        info = get_worker_info()
        mine = slice(info.id, None, info.num_workers) if self.is_split and info else slice(None)
        given = [*zip(self.inputs[mine], self.targets[mine], strict=True)] * self.times
        order = torch.randperm(len(given)).tolist() if self.shuffles else range(len(given))
        yield from (given[each] for each in order)


def train(stream: IterableDataset, workers: int = 2, passes: int = 1) -> None:
    training = Training()
    loader = DataLoader(stream, batch_size=6, num_workers=workers, persistent_workers=passes > 1)
    for _ in range(passes):
        for inputs, targets in loader:
            training.step(inputs, targets)


def broken() -> None:
    train(Stream(is_split=False))


def mended() -> None:
    train(Stream(is_split=True))


def broken_in_an_order_of_each_worker() -> None:
    train(Stream(is_split=False, shuffles=True))


def healthy_parts_in_a_drawn_order() -> None:
    train(Stream(is_split=True, shuffles=True))


def healthy_parts_of_workers_that_persist() -> None:
    train(Stream(is_split=True), passes=2)


def healthy_parts_that_come_twice() -> None:
    train(Stream(is_split=True, times=2))


class Noise(IterableDataset):
    """Samples without end, which each worker draws for itself."""

    def __iter__(self):
        for _ in range(24):
            yield torch.randn(6), torch.randint(3, ())


def healthy_samples_that_each_worker_draws() -> None:
    train(Noise())


def healthy_one_worker() -> None:
    train(Stream(is_split=False), workers=1)


def healthy_no_worker() -> None:
    train(Stream(is_split=False), workers=0)
