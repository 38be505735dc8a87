"""A sampler has a weight for each class, not for each sample, and draws only the first samples."""

import torch
from torch.utils.data import DataLoader, Subset, SubsetRandomSampler, WeightedRandomSampler

from doctor.programs.data.samples import COUNT, Training, data, samples

CODE = "SAMPLES_NEVER_DRAWN"


def train(loader: DataLoader) -> None:
    training = Training()
    for _ in range(3):
        for inputs, targets in loader:
            training.step(inputs, targets)


def weights() -> torch.Tensor:
    return 1.0 / samples()[1].bincount(minlength=3).clamp(min=1)


def broken() -> None:
    train(DataLoader(data(), batch_size=8, sampler=WeightedRandomSampler(weights(), COUNT)))


def mended() -> None:
    sampler = WeightedRandomSampler(weights()[samples()[1]], COUNT)
    train(DataLoader(data(), batch_size=8, sampler=sampler))


def broken_by_weights_of_another_data_set() -> None:
    sampler = WeightedRandomSampler(torch.ones(16), COUNT)
    train(DataLoader(data(), batch_size=8, sampler=sampler))


def train_with(weights_of_classes: torch.Tensor) -> None:
    sampler = WeightedRandomSampler(weights_of_classes[samples()[1]], COUNT)
    train(DataLoader(data(), batch_size=8, sampler=sampler))


def broken_by_a_class_with_the_weight_0() -> None:
    count = samples()[1].bincount(minlength=3)
    train_with((count.min() // count + (count < count.max())).double())


def healthy_rare_class_with_a_small_weight() -> None:
    train_with(torch.tensor([1.0, 1e-3, 1.0]))


def healthy_few_samples_that_are_left_out() -> None:
    sampler = WeightedRandomSampler((torch.arange(COUNT) % 8 > 0).double(), COUNT)
    train(DataLoader(data(), batch_size=8, sampler=sampler))


def healthy_sampler_of_a_part() -> None:
    train(DataLoader(data(), batch_size=8, sampler=SubsetRandomSampler(range(12))))


def healthy_weights_of_a_subset() -> None:
    part = Subset(data(), range(12))
    train(DataLoader(part, batch_size=4, sampler=WeightedRandomSampler(torch.ones(12), 24)))


def healthy_few_draws_from_many_samples() -> None:
    sampler = WeightedRandomSampler(torch.ones(COUNT), 8)
    train(DataLoader(data(), batch_size=4, sampler=sampler))


def healthy_small_last_batch_that_is_dropped() -> None:
    train(DataLoader(data(), batch_size=32, drop_last=True, shuffle=True))


def index(batch_of, *, steps: int = 24, evaluated: slice | None = None) -> None:
    inputs, targets = samples()
    training = Training()
    for step in range(steps):
        batch = batch_of(step)
        training.step(inputs[batch], targets[batch])
    if evaluated is not None:
        training.evaluate([(inputs[evaluated], targets[evaluated])])


def broken_by_indices_below_the_size_of_a_batch() -> None:
    index(lambda _: torch.randint(0, 8, (8,)))


def broken_by_a_loop_over_a_part() -> None:
    index(lambda step: slice(step % 4 * 6, step % 4 * 6 + 6))


def healthy_part_for_the_training() -> None:
    index(lambda step: slice(step % 4 * 6, step % 4 * 6 + 6), evaluated=slice(24, COUNT))


def healthy_one_batch_on_purpose() -> None:
    index(lambda _: slice(0, 8))


def healthy_random_indices() -> None:
    index(lambda _: torch.randint(0, COUNT, (8,)))


class Buffer:
    """Keeps states in the order in which they come, and draws from those that it has."""

    def __init__(self, room: int) -> None:
        self.states, self.classes = torch.zeros(room, 6), torch.zeros(room, dtype=torch.long)
        self.count = 0

    def add(self, states: torch.Tensor, classes: torch.Tensor) -> None:
        places = slice(self.count, self.count + len(states))
        self.states[places], self.classes[places] = states, classes
        self.count += len(states)


KEPT: list[Buffer] = []


def replay(room: int, most: int) -> None:
    """Train on states of a buffer that is still partly empty at the end."""
    inputs, targets = samples(192)
    buffer, training = Buffer(room), Training()
    KEPT[:] = [buffer]
    for step in range(48):
        new = slice(4 * step, 4 * step + 4)
        buffer.add(inputs[new], targets[new])
        batch = torch.randint(0, min(buffer.count, most), (16,))
        training.step(buffer.states[batch], buffer.classes[batch])


def broken_by_indices_of_the_first_states_of_a_buffer() -> None:
    replay(room=600, most=16)


def healthy_buffer_that_is_partly_empty() -> None:
    replay(room=600, most=600)
