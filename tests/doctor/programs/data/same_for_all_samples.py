"""The loop takes the inputs with an index that never changes."""

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from doctor.programs.data.samples import COUNT, Training, samples

CODE = "SAME_FOR_ALL_SAMPLES"


def train(prepared, *, steps: int = 18) -> None:
    inputs, targets = samples()
    training = Training()
    for step in range(steps):
        rows = torch.arange(8) + step * 8 % COUNT
        training.step(prepared(inputs, rows), targets[rows])


def broken() -> None:
    train(lambda inputs, rows: torch.stack([inputs[0] for _ in rows]))


def mended() -> None:
    train(lambda inputs, rows: torch.stack([inputs[row] for row in rows]))


def broken_by_a_division_without_fractions() -> None:
    train(lambda inputs, rows: (inputs[rows].abs() * 20) // 255)


def load(inputs: torch.Tensor, targets: torch.Tensor) -> None:
    training = Training()
    for _ in range(3):
        for batch, wanted in DataLoader(TensorDataset(inputs, targets), batch_size=8, shuffle=True):
            training.step(batch, wanted)


def broken_targets_of_a_data_set() -> None:
    inputs, targets = samples()
    load(inputs, torch.full_like(targets, int(targets[0])))


def healthy_classes() -> None:
    load(*samples())


def healthy_targets_of_a_contrast() -> None:
    """The first score is that of the positive pair, so that all targets are 0."""
    inputs, _ = samples()
    training = Training()
    for _ in range(3):
        for batch in torch.randperm(COUNT).split(8):
            scores = training.model(inputs[batch])
            training.optimizer.zero_grad()
            functional.cross_entropy(scores, torch.zeros(8, dtype=torch.int64)).backward()
            training.optimizer.step()


def healthy_one_batch_on_purpose() -> None:
    inputs, targets = samples()
    training = Training()
    for _ in range(12):
        training.step(inputs[:8], targets[:8])


def healthy_constant_inputs_and_targets() -> None:
    """What a benchmark of the speed trains on."""
    training = Training()
    for _ in range(12):
        training.step(torch.ones(8, 6), torch.zeros(8, dtype=torch.int64))


def broken_by_another_column_of_the_targets() -> None:
    inputs, targets = samples()
    both = torch.stack([targets, torch.zeros_like(targets)], 1)
    training = Training()
    for _ in range(3):
        for batch, wanted in DataLoader(TensorDataset(inputs, both), batch_size=8):
            training.step(batch, wanted[:, 1])
