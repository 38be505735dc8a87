"""An iterable data set that gives all of its samples in each worker."""

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from doctor.programs.data.samples import Training, samples

CODE = "SAMPLES_REPEATED_BY_WORKERS"


class Stream(IterableDataset):
    """All samples, or the part of a worker."""

    def __init__(self, *, is_split: bool) -> None:
        self.inputs, self.targets = samples()
        self.is_split = is_split

    def __iter__(self):
        info = get_worker_info()
        mine = slice(info.id, None, info.num_workers) if self.is_split and info else slice(None)
        yield from zip(self.inputs[mine], self.targets[mine], strict=True)


def train(stream: IterableDataset, workers: int = 2) -> None:
    training = Training()
    for inputs, targets in DataLoader(stream, batch_size=6, num_workers=workers):
        training.step(inputs, targets)


def broken() -> None:
    train(Stream(is_split=False))


def mended() -> None:
    train(Stream(is_split=True))


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
