"""A seed is set in each step, so that each step draws the same mask of dropout."""

import numpy as np
import torch
from torch.utils.data import DataLoader

from doctor.programs.data.samples import Training, data

CODE = "RANDOM_NUMBERS_REPEAT"


def train(before, *, dropout: float = 0.3, prepared=lambda inputs: inputs, epochs: int = 3) -> None:
    training = Training(dropout)
    loader = DataLoader(data(), batch_size=8)
    step = 0
    for epoch in range(epochs):
        for inputs, targets in loader:
            before(epoch, step)
            training.step(prepared(inputs), targets)
            step += 1


def nothing(epoch: int, step: int) -> None:
    """Set no seed."""


def broken() -> None:
    def seed(epoch: int, step: int) -> None:
        torch.manual_seed(0)

    train(seed)


def mended() -> None:
    train(nothing)


def broken_at_the_begin_of_each_epoch() -> None:
    def seed(epoch: int, step: int) -> None:
        if step % 6 == 0:
            torch.manual_seed(11)

    train(seed, epochs=4)


def broken_in_the_noise_of_the_inputs() -> None:
    def noisy(inputs: torch.Tensor) -> torch.Tensor:
        torch.random.manual_seed(5)
        return inputs + 0.1 * torch.randn_like(inputs)

    train(nothing, dropout=0.0, prepared=noisy)


def train_with_noise(noise_of) -> None:
    """Add `noise_of(shape, step)` in each step."""
    steps = []

    def noisy(inputs: torch.Tensor) -> torch.Tensor:
        steps.append(len(steps))
        noise = noise_of(inputs.shape, steps[-1])
        return inputs + 0.1 * torch.from_numpy(noise).float()

    train(nothing, dropout=0.0, prepared=noisy)


def broken_by_a_new_generator_of_numpy_in_each_step() -> None:
    seed = 7
    train_with_noise(lambda shape, step: np.random.default_rng(seed).normal(size=shape))


def healthy_generator_of_numpy() -> None:
    rng = np.random.default_rng(7)
    train_with_noise(lambda shape, step: rng.normal(size=shape))


def healthy_generator_of_numpy_for_each_step() -> None:
    train_with_noise(lambda shape, step: np.random.default_rng((7, step)).normal(size=shape))


def healthy_generator_of_numpy_for_each_evaluation() -> None:
    def noise_of(shape, step):
        if step % 6 == 0:
            np.random.default_rng(7).normal(size=shape)
        return np.zeros(shape)

    train_with_noise(noise_of)


def broken_by_a_generator_of_its_own() -> None:
    def noisy(inputs: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator().manual_seed(5)
        return inputs + 0.1 * torch.randn(inputs.shape, generator=generator)

    train(nothing, dropout=0.0, prepared=noisy)


def healthy_seed_of_the_step() -> None:
    def seed(epoch: int, step: int) -> None:
        torch.manual_seed(step)

    train(seed)


def healthy_seed_without_random_numbers() -> None:
    def seed(epoch: int, step: int) -> None:
        torch.manual_seed(0)

    train(seed, dropout=0.0)


def healthy_noise_that_belongs_to_a_sample() -> None:
    def noisy(inputs: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator().manual_seed(int(inputs[0, 0] * 1000))
        return inputs + 0.1 * torch.randn(inputs.shape, generator=generator)

    train(nothing, dropout=0.0, prepared=noisy)


def healthy_fixed_noise_for_pictures() -> None:
    """Each epoch ends with outputs for the same noise, and the state of before is restored."""
    training, loader = Training(0.3), DataLoader(data(), batch_size=8)
    for _ in range(4):
        for inputs, targets in loader:
            training.step(inputs, targets)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            training.model.eval()
            training.model(torch.randn(4, 6))
            training.model.train()


def healthy_seed_for_each_of_several_trainings() -> None:
    for _ in range(3):
        torch.manual_seed(0)
        train(nothing, epochs=1)


def healthy_rare_events_of_a_generator() -> None:
    """Hardly any draw is a 1."""
    generator = torch.Generator().manual_seed(3)

    def erased(inputs: torch.Tensor) -> torch.Tensor:
        rare = torch.full((len(inputs), 1), 1e-4)
        return inputs * (1 - torch.bernoulli(rare, generator=generator))

    train(nothing, prepared=erased)
