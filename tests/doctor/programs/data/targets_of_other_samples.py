"""Inputs and targets are drawn with two permutations, so that no target fits its sample."""

import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

from doctor.programs.data.samples import COUNT, Training, data, samples

CODE = "TARGETS_OF_OTHER_SAMPLES"
EPOCHS = 5


def broken() -> None:
    inputs, targets = samples()
    training = Training()
    for _ in range(EPOCHS):
        for start in range(0, COUNT, 8):
            training.step(
                inputs[torch.randperm(COUNT)][start : start + 8],
                targets[torch.randperm(COUNT)][start : start + 8],
            )


def mended() -> None:
    inputs, targets = samples()
    training = Training()
    for _ in range(EPOCHS):
        order = torch.randperm(COUNT)
        for start in range(0, COUNT, 8):
            batch = order[start : start + 8]
            training.step(inputs[batch], targets[batch])


def broken_by_two_loaders() -> None:
    inputs, targets = samples()
    training = Training()
    first = DataLoader(inputs, batch_size=8, shuffle=True)
    second = DataLoader(targets, batch_size=8, shuffle=True)
    for _ in range(EPOCHS):
        for batch, wanted in zip(first, second, strict=True):
            training.step(batch, wanted)


def regress(targets_of, loss_of, epochs: int = 8) -> None:
    inputs, _ = samples()
    targets = inputs[:, :1] * 3
    model = Training().model
    head = nn.Sequential(model, nn.Linear(3, 1))
    optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
    for _ in range(epochs):
        for batch in torch.randperm(COUNT).split(8):
            optimizer.zero_grad()
            loss_of(head(inputs[batch]), targets_of(targets, batch)).backward()
            optimizer.step()


def broken_in_a_regression() -> None:
    def any_of(targets: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return targets[torch.randint(COUNT, (len(batch),))]

    regress(any_of, functional.mse_loss)


def broken_before_a_difference_by_hand() -> None:
    def shuffled(targets: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return targets[batch[torch.randperm(len(batch))]]

    regress(shuffled, lambda outputs, targets: ((outputs - targets) ** 2).mean(), epochs=12)


class RandomLabels(Dataset):
    """A data set that looks up the label with another index."""

    def __init__(self) -> None:
        self.inputs, self.targets = samples()

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int):
        other = int(torch.randint(COUNT, ()))
        return self.inputs[index], self.targets[other]


def broken_in_a_data_set() -> None:
    training, loader = Training(), DataLoader(RandomLabels(), batch_size=8, shuffle=True)
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            training.step(inputs, targets)


def healthy_labels_without_meaning() -> None:
    """Labels at random, but the same ones in each epoch, to see what a model can memorise."""
    inputs, targets = samples()
    targets = targets[torch.randperm(COUNT)]
    training = Training()
    for _ in range(EPOCHS):
        for batch in torch.randperm(COUNT).split(8):
            training.step(inputs[batch], targets[batch])


def healthy_labels_with_noise() -> None:
    training, loader = Training(), DataLoader(data(), batch_size=8, shuffle=True)
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            noise = torch.rand(len(targets)) < 0.3
            training.step(inputs, torch.where(noise, torch.randint(3, targets.shape), targets))


def healthy_contrast_within_a_batch() -> None:
    model = Training().model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs, _ = samples()
    for _ in range(EPOCHS):
        for batch in torch.randperm(COUNT).split(8):
            outputs = functional.normalize(model(inputs[batch]), dim=1)
            optimizer.zero_grad()
            functional.cross_entropy(outputs @ outputs.T / 0.1, torch.arange(8)).backward()
            optimizer.step()


def healthy_clusters_with_new_numbers() -> None:
    inputs, targets = samples()
    training = Training()
    for _ in range(EPOCHS):
        names = torch.randperm(3)
        for batch in torch.randperm(COUNT).split(8):
            training.step(inputs[batch], names[targets[batch]])


def healthy_mixed_samples() -> None:
    training, loader = Training(), DataLoader(data(), batch_size=8, shuffle=True)
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            other = torch.randperm(len(inputs))
            outputs = training.model(0.7 * inputs + 0.3 * inputs[other])
            loss = 0.7 * functional.cross_entropy(outputs, targets)
            loss = loss + 0.3 * functional.cross_entropy(outputs, targets[other])
            training.optimizer.zero_grad()
            loss.backward()
            training.optimizer.step()


def healthy_values_of_a_policy() -> None:
    """The same states, with targets that the model itself computes."""

    def bootstrapped(targets: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return torch.randn(len(batch), 1) + targets[batch].sign()

    regress(bootstrapped, functional.smooth_l1_loss)


def healthy_one_pass() -> None:
    training = Training()
    for inputs, targets in DataLoader(data(), batch_size=8):
        training.step(inputs, targets)


def broken_in_the_first_epoch() -> None:
    inputs, targets = samples()
    training = Training()
    order, other = torch.randperm(COUNT), torch.randperm(COUNT)
    for start in range(0, COUNT, 8):
        batch = slice(start, start + 8)
        training.step(inputs[order[batch]], targets[other[batch]])


def broken_by_a_permutation_of_the_inputs_alone() -> None:
    inputs, targets = samples()
    inputs = inputs[torch.randperm(COUNT)]
    training = Training()
    for start in range(0, COUNT, 8):
        training.step(inputs[start : start + 8], targets[start : start + 8])


def split(order_of) -> None:
    """Train on the first samples of an order of the inputs, and of one of the targets."""
    inputs, targets = samples()
    order = order_of()
    inputs, targets = inputs[order], targets[order if order_of is same_for_both else order_of()]
    training = Training()
    data = TensorDataset(inputs[:40], targets[:40])
    for inputs, targets in DataLoader(data, batch_size=8, shuffle=True):
        training.step(inputs, targets)


def same_for_both() -> torch.Tensor:
    return torch.randperm(COUNT)


def broken_by_two_orders_in_a_data_set() -> None:
    split(lambda: torch.randperm(COUNT))


def healthy_order_of_both_in_a_data_set() -> None:
    split(same_for_both)


def healthy_unpaired_samples_of_two_domains() -> None:
    one, _ = samples()
    other = one.flip(0) + 1
    data = TensorDataset(one[torch.randperm(COUNT)], other[torch.randperm(COUNT)])
    training = Training()
    for inputs, others in DataLoader(data, batch_size=8):
        training.step(torch.cat([inputs, others]), torch.arange(16) // 8)


def broken_by_slices_of_the_targets() -> None:
    inputs, targets = samples()
    training = Training()
    order = torch.randperm(COUNT)
    for start in range(0, COUNT, 8):
        training.step(inputs[order[start : start + 8]], targets[start : start + 8])


def healthy_permutation_of_both() -> None:
    inputs, targets = samples()
    order = torch.randperm(COUNT)
    inputs, targets = inputs[order], targets[order]
    training = Training()
    for start in range(0, COUNT, 8):
        training.step(inputs[start : start + 8], targets[start : start + 8])


def healthy_targets_of_permuted_inputs() -> None:
    inputs = samples()[0][torch.randperm(COUNT)]
    targets = inputs.argmax(1) % 3
    training = Training()
    for start in range(0, COUNT, 8):
        training.step(inputs[start : start + 8], targets[start : start + 8])


def healthy_order_before_the_targets() -> None:
    inputs, _ = samples()
    order = torch.randperm(COUNT)
    targets = inputs[order].argmax(1) % 3
    training = Training()
    for start in range(0, COUNT, 8):
        training.step(inputs[order[start : start + 8]], targets[start : start + 8])


def healthy_forecast() -> None:
    inputs, _ = samples()
    head = Training().model
    model = nn.Sequential(head, nn.Linear(3, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for start in range(0, COUNT - 8, 8):
        optimizer.zero_grad()
        outputs = model(inputs[start : start + 8])
        functional.mse_loss(outputs, inputs[start + 1 : start + 9]).backward()
        optimizer.step()


def broken_by_targets_of_the_batch_before() -> None:
    training, loader = Training(), DataLoader(data(), batch_size=8)
    before = None
    for _ in range(2):
        for inputs, targets in loader:
            if before is not None:
                training.step(inputs, before)
            before = targets


def broken_by_two_batches() -> None:
    training, loader = Training(), DataLoader(data(), batch_size=8, shuffle=True)
    for _ in range(6):
        inputs = next(iter(loader))[0]
        targets = next(iter(loader))[1]
        training.step(inputs, targets)


def healthy_batch_that_is_fetched_ahead() -> None:
    training, loader = Training(), DataLoader(data(), batch_size=8)
    ahead = None
    for batch in loader:
        if ahead is not None:
            training.step(*ahead)
        ahead = batch


def in_arrays(shuffle) -> None:
    """Train for one epoch on arrays that are shuffled before."""
    inputs, targets = (each.numpy().copy() for each in samples())
    inputs, targets = shuffle(inputs, targets)
    inputs, targets = torch.from_numpy(np.asarray(inputs)), torch.tensor(np.asarray(targets))
    training = Training()
    for start in range(0, COUNT, 8):
        training.step(inputs[start : start + 8], targets[start : start + 8])


def broken_by_two_shuffles() -> None:
    def shuffle(inputs, targets):
        np.random.shuffle(inputs)  # noqa: NPY002
        np.random.shuffle(targets)  # noqa: NPY002
        return inputs, targets

    in_arrays(shuffle)


def broken_by_two_shuffles_of_lists() -> None:
    def shuffle(inputs, targets):
        inputs, targets = list(inputs), targets.tolist()
        random.shuffle(inputs)
        random.shuffle(targets)
        return np.stack(inputs), targets

    in_arrays(shuffle)


def healthy_two_shuffles_after_the_same_seed() -> None:
    def shuffle(inputs, targets):
        random.seed(4)
        inputs, targets = list(inputs), targets.tolist()
        random.shuffle(inputs)
        random.seed(4)
        random.shuffle(targets)
        return np.stack(inputs), targets

    in_arrays(shuffle)


def healthy_shuffles_of_two_domains() -> None:
    def shuffle(inputs, targets):
        other = inputs + 1
        np.random.shuffle(other)  # noqa: NPY002
        order = np.arange(COUNT)
        np.random.shuffle(order)  # noqa: NPY002
        return inputs[order], targets[order]

    in_arrays(shuffle)


def two_domains(wrong: bool, *, by_loader: bool = False) -> None:
    """Adapt to a second domain: the model runs for both, and each has a loss of its own."""
    inputs, targets = samples()
    second = inputs + 0.5
    model = Training().model
    domain = nn.Linear(3, 2)
    both = [*model.parameters(), *domain.parameters()]
    optimizer = torch.optim.SGD(both, lr=0.05)
    loader = DataLoader(data(), batch_size=8, shuffle=True)
    for _ in range(24):
        one, other = torch.randint(COUNT, (8,)), torch.randint(COUNT, (8,))
        if by_loader:
            (first, wanted), (shifted, its) = next(iter(loader)), next(iter(loader))
        else:
            first, shifted, wanted, its = inputs[one], second[other], targets[one], targets[other]
        outputs, others = model(first), model(shifted)
        loss = functional.cross_entropy(outputs, its if wrong else wanted)
        where = domain(torch.cat([outputs, others]))
        loss = loss + functional.cross_entropy(where, torch.arange(2).repeat_interleave(8))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def broken_in_the_first_of_two_domains() -> None:
    two_domains(wrong=True)


def broken_in_the_first_of_two_batches() -> None:
    two_domains(wrong=True, by_loader=True)


def healthy_two_domains() -> None:
    two_domains(wrong=False)


def healthy_two_batches_of_one_loader() -> None:
    two_domains(wrong=False, by_loader=True)


def healthy_two_domains_with_a_model_of_two_outputs() -> None:
    """Only one output of each call has targets, and the other call comes between."""
    inputs, targets = samples()
    second = inputs + 0.5
    torch.manual_seed(0)

    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(nn.Linear(6, 16), nn.ReLU())
            self.label, self.domain = nn.Linear(16, 3), nn.Linear(16, 2)

        def forward(self, x):
            hidden = self.features(x)
            return self.label(hidden), self.domain(hidden)

    model, losses = Adapted(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(24):
        one, other = torch.randint(COUNT, (8,)), torch.randint(COUNT, (8,))
        outputs, first = model(inputs[one])
        _, last = model(second[other])
        where = torch.cat([first, last]), torch.arange(2).repeat_interleave(8)
        optimizer.zero_grad()
        (losses(outputs, targets[one]) + losses(*where)).backward()
        optimizer.step()


def healthy_two_models_in_one_step() -> None:
    """Two experts, each with a batch of its own, whose losses come after both calls."""
    inputs, targets = samples()
    one, other = Training(), Training()
    for _ in range(24):
        mine, its = torch.randint(COUNT, (8,)), torch.randint(COUNT, (8,))
        first, second = one.model(inputs[mine]), other.model(inputs[its])
        loss = functional.cross_entropy(first, targets[mine])
        loss = loss + functional.cross_entropy(second, targets[its])
        one.optimizer.zero_grad()
        other.optimizer.zero_grad()
        loss.backward()
        one.optimizer.step()
        other.optimizer.step()


class Sorted(nn.Module):
    """A layer for which the samples are sorted by their first number.

    Args:
        back: Whether the results get the order of the inputs again.
    """

    def __init__(self, *, back: bool) -> None:
        super().__init__()
        self.layer, self.back = nn.Linear(6, 3), back

    def forward(self, inputs: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        order = sizes.argsort()
        outputs = self.layer(inputs[order])
        return outputs[order.argsort()] if self.back else outputs


def sort(order_of=None, *, back: bool = False, loaded: bool = True) -> None:
    torch.manual_seed(0)
    model, (inputs, targets) = Sorted(back=back), samples()
    sizes = torch.rand(COUNT)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(TensorDataset(inputs, sizes, targets), batch_size=8, shuffle=True)
    taken = [torch.randint(COUNT, (8,)) for _ in range(6)]
    for batch in loader if loaded else ((inputs[i], sizes[i], targets[i]) for i in taken):
        one, size, its = batch
        its = its if order_of is None else its[order_of(size)]
        optimizer.zero_grad()
        functional.cross_entropy(model(one, size), its).backward()
        optimizer.step()


def broken_by_a_model_that_sorts() -> None:
    sort()


def broken_by_a_model_that_sorts_rows_of_the_loop() -> None:
    sort(loaded=False)


def healthy_model_that_sorts_and_puts_back() -> None:
    sort(back=True)


def healthy_targets_that_are_sorted_as_well() -> None:
    sort(torch.argsort)


class Sequences(Dataset):
    """Sequences of some numbers, and the class of each."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int):
        generator = torch.Generator().manual_seed(index)
        length = int(torch.randint(2, 7, (), generator=generator))
        sequence = torch.randn(length, generator=generator)
        return sequence, int(sequence.sum() > 0) + int(sequence.sum() > 1)


def longest_first(samples):
    return sorted(samples, key=lambda each: -len(each[0]))


def padded(sequences):
    return torch.stack([functional.pad(each, (0, 6 - len(each))) for each in sequences])


def train_on_sequences(collate) -> None:
    training = Training()
    loader = DataLoader(Sequences(), 8, shuffle=True, collate_fn=collate)
    for inputs, targets, *order in loader:
        training.step(inputs, targets[order[0]] if order else targets)


def broken_by_a_collate_function_that_sorts_the_inputs() -> None:
    def collate(samples):
        inputs = padded([each for each, _ in longest_first(samples)])
        return inputs, torch.tensor([label for _, label in samples])

    train_on_sequences(collate)


def healthy_collate_function_that_sorts_samples() -> None:
    def collate(samples):
        samples = longest_first(samples)
        return padded([each for each, _ in samples]), torch.tensor([each for _, each in samples])

    train_on_sequences(collate)


def healthy_collate_function_that_returns_the_order() -> None:
    def collate(samples):
        order = sorted(range(len(samples)), key=lambda each: -len(samples[each][0]))
        inputs = padded([samples[each][0] for each in order])
        return inputs, torch.tensor([label for _, label in samples]), torch.tensor(order)

    train_on_sequences(collate)


def healthy_collate_function_that_pairs_samples() -> None:
    def collate(samples):
        inputs = padded([each for each, _ in samples])
        labels = torch.tensor([label for _, label in samples])
        return torch.where(torch.rand(8, 1) < 0.5, inputs, inputs.roll(1, 0)), labels

    train_on_sequences(collate)
