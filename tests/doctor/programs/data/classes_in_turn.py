"""A loader without shuffle over data that are ordered by class."""

import itertools
import random

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from doctor.programs.data.samples import COUNT, Training, samples

CODE = "CLASSES_IN_TURN"
EPOCHS = 6


def ordered() -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = samples()
    order = targets.argsort()
    return inputs[order], targets[order]


def train(loader: DataLoader, epochs: int = EPOCHS) -> None:
    training = Training(rate=0.3)
    for _ in range(epochs):
        for inputs, targets in loader:
            training.step(inputs, targets)


def broken() -> None:
    train(DataLoader(TensorDataset(*ordered()), batch_size=4))


def mended() -> None:
    train(DataLoader(TensorDataset(*ordered()), batch_size=4, shuffle=True))


def broken_in_slices_of_the_loop() -> None:
    inputs, targets = ordered()
    training = Training(rate=0.3)
    for _ in range(EPOCHS):
        for start in range(0, COUNT, 4):
            training.step(inputs[start : start + 4], targets[start : start + 4])


def broken_with_one_batch_of_each_class() -> None:
    inputs, _ = samples(24)
    targets = torch.arange(3).repeat_interleave(8)
    train(DataLoader(TensorDataset(inputs, targets), batch_size=8), epochs=8)


def broken_with_units_that_have_died() -> None:
    inputs, targets = ordered()
    training = Training(rate=1.0)
    with torch.no_grad():
        training.model[0].bias.fill_(-100)
    for _ in range(EPOCHS):
        for start in range(0, COUNT, 4):
            training.step(inputs[start : start + 4], targets[start : start + 4])


def stream(*, mixed: bool, epochs: int = EPOCHS) -> None:
    """Read one file for each class, in another order in each epoch, each in a random order."""
    inputs, targets = samples(96)
    training, rng = Training(rate=0.3), random.Random(0)
    for _ in range(epochs):
        kinds = rng.sample(range(3), 3)
        files = [(targets == kind).nonzero()[:, 0].tolist() for kind in kinds]
        rows = [each for file in files for each in rng.sample(file, len(file))]
        if mixed:
            rng.shuffle(rows)
        for start in range(0, len(rows), 4):
            batch = rows[start : start + 4]
            training.step(inputs[batch], targets[batch])


def broken_in_a_stream_of_files_in_another_order_in_each_epoch() -> None:
    stream(mixed=False)


def healthy_stream_of_mixed_files() -> None:
    stream(mixed=True)


def healthy_files_that_are_read_once() -> None:
    stream(mixed=False, epochs=1)


def healthy_ordered_data_in_large_batches() -> None:
    train(DataLoader(TensorDataset(*ordered()), batch_size=COUNT))


def healthy_tasks_one_after_the_other() -> None:
    inputs, targets = ordered()
    training = Training(rate=0.3)
    for task in range(3):
        mine = targets == task
        for _ in range(4):
            for batch in mine.nonzero()[:, 0].split(4):
                training.step(inputs[batch], targets[batch])


def healthy_batch_of_parts_that_have_one_class_each() -> None:
    """Each step accumulates over a batch of each class."""
    inputs, targets = ordered()
    training = Training(rate=0.3)
    parts = [(inputs[targets == kind], targets[targets == kind]) for kind in range(3)]
    for _ in range(8):
        training.optimizer.zero_grad()
        for mine, wanted in parts:
            functional.cross_entropy(training.model(mine), wanted).backward()
        training.optimizer.step()


def healthy_nearly_one_class() -> None:
    inputs, targets = samples()
    targets = torch.where(torch.arange(COUNT) < 44, 0, targets)
    train(DataLoader(TensorDataset(inputs, targets), batch_size=4))


def healthy_order_that_does_no_harm() -> None:
    """A small rate: what a batch learns, the others do not unlearn."""
    inputs, targets = ordered()
    training = Training(rate=1e-4)
    with torch.no_grad():  # a model that is trained already
        training.model[0].weight.mul_(0.1)
        training.model[2].weight.mul_(0)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=4)
    for _ in range(EPOCHS):
        for batch, wanted in loader:
            training.step(batch, wanted)


def broken_in_a_binary_loss() -> None:
    inputs, _ = samples()
    targets = (inputs[:, 0] > 0).float()
    order = targets.argsort()
    training = Training(rate=0.5)
    for _ in range(EPOCHS):
        for batch in order.split(4):
            training.optimizer.zero_grad()
            outputs = training.model(inputs[batch])[:, 0]
            functional.binary_cross_entropy_with_logits(outputs, targets[batch]).backward()
            training.optimizer.step()


def healthy_adversary() -> None:
    """A judge gets real and made samples in turn."""
    inputs, _ = samples()
    training = Training()
    for step in range(24):
        mine = inputs[:8] if step % 2 else torch.randn(8, 6)
        training.optimizer.zero_grad()
        outputs, wanted = training.model(mine)[:, 0], torch.full((8,), float(step % 2))
        functional.binary_cross_entropy_with_logits(outputs, wanted).backward()
        training.optimizer.step()


def buffered(source, size: int, draw: random.Random):
    """Yield the samples of a stream, shuffled within a buffer."""
    kept = list(itertools.islice(source, size))
    for sample in source:
        place = draw.randrange(size)
        yield kept[place]
        kept[place] = sample
    yield from draw.sample(kept, len(kept))


def train_on_a_stream(buffer: int, rate: float, factor: float = 1.0) -> None:
    draw, inputs, targets = random.Random(0), torch.randn(240, 6), torch.arange(240) // 60
    inputs[:, :4] += 2 * functional.one_hot(targets, 4)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    for _ in range(6):
        stream = buffered(iter(range(240)), buffer, draw)
        while batch := list(itertools.islice(stream, 8)):
            loss = factor * functional.cross_entropy(model(inputs[batch]), targets[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def broken_by_a_small_buffer() -> None:
    train_on_a_stream(buffer=12, rate=0.05)


def healthy_buffer_of_all_samples() -> None:
    train_on_a_stream(buffer=120, rate=0.05)


def healthy_small_buffer_with_a_small_rate() -> None:
    train_on_a_stream(buffer=12, rate=1e-4)


def healthy_small_buffer_and_a_loss_of_another_size() -> None:
    """Its loss is above that of a guess, but the steps unlearn nothing."""
    train_on_a_stream(buffer=12, rate=1e-5, factor=8.0)


def broken_at_the_loss_of_a_guess() -> None:
    """The first layer has died, and the last one follows the class of the moment."""
    inputs, targets = ordered()
    training = Training(rate=0.1)
    with torch.no_grad():
        training.model[0].bias.fill_(-100)
    for _ in range(EPOCHS):
        for start in range(0, COUNT, 4):
            training.step(inputs[start : start + 4], targets[start : start + 4])
