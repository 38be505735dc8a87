"""The parts of a random split get their augmentation through one of them."""

import copy

import torch
from torch.utils.data import DataLoader, Dataset, random_split

from doctor.programs.data.samples import Training, samples

CODE = "PARTS_SHARE_DATA_SET"


class Augmented(Dataset):
    """Samples with noise, or without it."""

    def __init__(self) -> None:
        self.inputs, self.targets = samples()
        self.noise = 0.1
        self.reads = 0

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index):
        self.reads += 1
        return self.inputs[index] + self.noise, self.targets[index]


def parts():
    return random_split(Augmented(), [32, 16], torch.Generator().manual_seed(0))


def train(train_set, test_set, prepare=lambda part, noise: None) -> None:
    training = Training()
    train_loader = DataLoader(train_set, batch_size=8, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=8)
    for _ in range(3):
        prepare(train_set, 0.1)
        for inputs, targets in train_loader:
            training.step(inputs, targets)
        prepare(test_set, 0.0)
        training.evaluate(test_loader)


def broken() -> None:
    train_set, test_set = parts()
    test_set.dataset.noise = 0.0
    train(train_set, test_set)


def mended() -> None:
    train_set, test_set = parts()
    test_set.dataset = copy.copy(test_set.dataset)
    test_set.dataset.noise = 0.0
    train(train_set, test_set)


def broken_in_a_function() -> None:
    def plain(part):
        part.dataset.noise = 0.0
        return part

    train_set, test_set = parts()
    train(train_set, plain(test_set))


def configure(part, **settings) -> None:
    for name, value in settings.items():
        setattr(part.dataset, name, value)


def broken_by_a_function_for_each_part() -> None:
    train_set, test_set = parts()
    configure(train_set, noise=0.2)
    configure(test_set, noise=0.0)
    train(train_set, test_set)


def healthy_function_for_parts_with_data_sets_of_their_own() -> None:
    train_set, test_set = parts()
    test_set.dataset = copy.copy(test_set.dataset)
    configure(train_set, noise=0.2)
    configure(test_set, noise=0.0)
    train(train_set, test_set)


def healthy_function_with_the_same_value_for_each_part() -> None:
    train_set, test_set = parts()
    configure(train_set, noise=0.2)
    configure(test_set, noise=0.2)
    train(train_set, test_set)


def healthy_function_before_each_pass() -> None:
    train(*parts(), lambda part, noise: configure(part, noise=noise))


def healthy_setting_for_all_parts() -> None:
    whole = Augmented()
    train_set, test_set = random_split(whole, [32, 16], torch.Generator().manual_seed(0))
    whole.noise = 0.05
    train(train_set, test_set)


def healthy_setting_in_turn() -> None:
    def training(part):
        part.dataset.noise = 0.1

    def testing(part):
        part.dataset.noise = 0.0

    train(*parts(), lambda part, noise: (training if noise else testing)(part))


def healthy_part_alone() -> None:
    train_set, _ = parts()
    train_set.dataset.noise = 0.0
    train(train_set, train_set)
