"""The loop normalises its batches in place, but they are views of the data."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from doctor.programs.data.samples import COUNT, Training, samples

CODE = "DATA_CHANGED_IN_PLACE"
EPOCHS = 4


def train(prepared, *, epochs: int = EPOCHS) -> None:
    inputs, targets = samples()
    training = Training()
    for _ in range(epochs):
        for start in range(0, COUNT, 8):
            batch = prepared(inputs[start : start + 8])
            training.step(batch, targets[start : start + 8])


def broken() -> None:
    def scaled(batch: torch.Tensor) -> torch.Tensor:
        batch *= 0.5
        return batch

    train(scaled)


def mended() -> None:
    train(lambda batch: batch * 0.5)


def broken_by_methods() -> None:
    train(lambda batch: batch.sub_(0.1).div_(2.0))


def broken_by_noise_that_adds_up() -> None:
    def noisy(batch: torch.Tensor) -> torch.Tensor:
        batch += 0.3 * torch.randn_like(batch)
        return batch

    train(noisy)


def broken_in_a_list_of_batches() -> None:
    inputs, targets = samples()
    batches = [(inputs[at : at + 8].clone(), targets[at : at + 8]) for at in range(0, COUNT, 8)]
    training = Training()
    for _ in range(EPOCHS):
        for batch, wanted in batches:
            batch.div_(batch.std())
            batch.add_(0.1)
            training.step(batch, wanted)


class Samples(Dataset):
    """A data set that prepares each sample.

    Args:
        prepared: Prepares a row of the inputs.
    """

    def __init__(self, prepared) -> None:
        self.inputs, self.targets = samples()
        self.prepared = prepared

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int):
        return self.prepared(self.inputs[index]), self.targets[index]


def load(prepared, epochs: int = EPOCHS) -> None:
    training, loader = Training(), DataLoader(Samples(prepared), batch_size=8, shuffle=True)
    for _ in range(epochs):
        for inputs, targets in loader:
            training.step(inputs, targets)


def broken_in_a_data_set() -> None:
    load(lambda row: row.sub_(0.2).mul_(1.5))


class Arrays(Samples):
    """A data set of arrays of NumPy, in a list."""

    def __init__(self, prepared) -> None:
        super().__init__(prepared)
        self.inputs = [each.numpy().copy() for each in self.inputs]


def load_arrays(prepared, epochs: int = EPOCHS) -> None:
    training, loader = Training(), DataLoader(Arrays(prepared), batch_size=8, shuffle=True)
    for _ in range(epochs):
        for inputs, targets in loader:
            training.step(inputs, targets)


def broken_in_arrays_of_a_data_set() -> None:
    def jittered(row: np.ndarray) -> np.ndarray:
        row += 0.3 * np.random.default_rng().normal(size=row.shape)
        return row.copy()

    load_arrays(jittered)


def healthy_arrays_that_are_copied() -> None:
    load_arrays(lambda row: row.copy() * 0.5)


def healthy_arrays_that_are_scaled_when_they_are_read_first() -> None:
    known = set()

    def scaled(row: np.ndarray) -> np.ndarray:
        if id(row) not in known:
            row *= 0.5
        known.add(id(row))
        return row

    load_arrays(scaled)


def healthy_arrays_of_a_state() -> None:
    """Running statistics, which each sample updates."""
    loader = Arrays(lambda row: row)
    loader.statistics = np.zeros((4, 6), np.float32)

    def counted(row: np.ndarray) -> np.ndarray:
        loader.statistics += 0.01 * (row - loader.statistics)
        return row - loader.statistics[0]

    loader.prepared = counted
    training = Training()
    batches = DataLoader(loader, batch_size=8, shuffle=True)
    for _ in range(EPOCHS):
        for inputs, targets in batches:
            training.step(inputs, targets)


def healthy_data_set_that_copies() -> None:
    load(lambda row: row.clone().sub_(0.2))


def healthy_batch_that_is_a_copy() -> None:
    inputs, targets = samples()
    training = Training()
    for _ in range(EPOCHS):
        for batch in torch.randperm(COUNT).split(8):
            mine = inputs[batch]
            mine -= 0.2
            training.step(mine, targets[batch])


def healthy_buffer_that_is_filled_again() -> None:
    inputs, targets = samples()
    training, buffer = Training(), torch.zeros(16, 6)
    for _ in range(EPOCHS):
        for start in range(0, COUNT, 8):
            mine = buffer[(start // 8 % 2) * 8 :][:8]
            mine.copy_(inputs[start : start + 8])
            mine -= 0.2
            training.step(mine, targets[start : start + 8])


def healthy_batch_of_a_loader() -> None:
    training, loader = Training(), DataLoader(Samples(lambda row: row), batch_size=8)
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            inputs.sub_(0.2)
            training.step(inputs, targets)


def healthy_state_that_goes_on() -> None:
    """A simulation whose state moves in place, as in reinforcement learning."""
    training, state = Training(), torch.randn(2, 8, 6)
    targets = torch.arange(8) % 3
    for _ in range(12):
        now = state[0]
        now += 0.1 * torch.randn_like(now)
        training.step(now, targets)


def healthy_one_epoch() -> None:
    train(lambda batch: batch.mul_(0.5), epochs=1)
