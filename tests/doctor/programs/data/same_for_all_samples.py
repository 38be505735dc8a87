"""The loop takes the inputs with an index that never changes."""

import torch
from torch import nn
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


class Joined(nn.Module):
    """A model of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(6, 8), nn.Linear(2, 8), nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(inputs) + self.second(other.float())))


def join(other: torch.Tensor, *, is_loaded: bool = True) -> None:
    inputs, targets = samples()
    training = Training()
    training.model = Joined()
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=0.05)
    for _ in range(3):
        data = TensorDataset(inputs, other, targets)
        for batch, second, wanted in DataLoader(data, batch_size=8, shuffle=True):
            given = second if is_loaded else torch.zeros(8, 2)
            training.optimizer.zero_grad()
            functional.cross_entropy(training.model(batch, given), wanted).backward()
            training.optimizer.step()


def broken_by_a_number_that_is_standardised_for_each_sample() -> None:
    numbers = samples()[0][:, :1]
    scaled = (numbers - numbers.mean(1, keepdim=True)) / (numbers.std(1, correction=0) + 1)[:, None]
    join(scaled.expand(-1, 2).contiguous())


def healthy_mask_that_leaves_out_nothing() -> None:
    join(torch.ones(COUNT, 2))


def healthy_whole_numbers_of_one_kind() -> None:
    """The numbers of the parts of a text, which has one part."""
    join(torch.zeros(COUNT, 2, dtype=torch.int64))


def healthy_first_state_of_the_loop() -> None:
    join(torch.ones(COUNT, 2), is_loaded=False)
