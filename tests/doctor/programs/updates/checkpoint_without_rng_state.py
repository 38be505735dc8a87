"""A checkpoint around dropout does not keep the state of the random generators."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from doctor.loops import batches

CODE = "CHECKPOINT_WITHOUT_RNG_STATE"


class Residual(nn.Module):
    """A block with dropout under a checkpoint, and a head.

    Args:
        share: The share of values that dropout drops.
        settings: Arguments of the checkpoint.
    """

    def __init__(self, share: float = 0.5, **settings) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lift, self.block, self.head = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.share, self.settings = share, settings

    def inner(self, features: torch.Tensor) -> torch.Tensor:
        return functional.dropout(self.block(features).relu(), self.share, self.training)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.lift(images)
        return self.head(features + checkpoint(self.inner, features, **self.settings))


def train(model: nn.Module, *, count: int = 6) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(count):
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def broken() -> None:
    train(Residual(use_reentrant=False, preserve_rng_state=False))


def mended() -> None:
    train(Residual(use_reentrant=False, preserve_rng_state=True))


def broken_in_a_reentrant_checkpoint() -> None:
    train(Residual(use_reentrant=True, preserve_rng_state=False))


def healthy_block_without_random_numbers() -> None:
    train(Residual(0.0, use_reentrant=False, preserve_rng_state=False))


def healthy_dropout_that_is_off() -> None:
    """Such as a fine-tuning in evaluation mode."""
    model = Residual(use_reentrant=True, preserve_rng_state=False)
    model.block.eval()
    model.training = False
    train(model)


class Masked(Residual):
    """A block whose mask comes from another source than torch's default generator.

    Args:
        draw: Returns numbers from 0 to 1 in the shape of features.
    """

    def __init__(self, draw, **settings) -> None:
        super().__init__(use_reentrant=False, **settings)
        self.draw = draw

    def inner(self, features: torch.Tensor) -> torch.Tensor:
        return self.block(features).relu() * (self.draw(features.shape) < self.share)


def own_generator():
    generator = torch.Generator().manual_seed(1)
    return lambda shape: torch.rand(shape, generator=generator)


def of_numpy(shape) -> torch.Tensor:
    return torch.from_numpy(np.random.rand(*shape)).float()  # noqa: NPY002


def broken_by_a_generator_of_its_own() -> None:
    train(Masked(own_generator()))


def broken_by_numpy() -> None:
    np.random.seed(0)  # noqa: NPY002
    train(Masked(of_numpy))


def healthy_generator_that_is_seeded_in_the_block() -> None:
    generator = torch.Generator()
    train(Masked(lambda shape: torch.rand(shape, generator=generator.manual_seed(3))))


def healthy_numpy_that_is_seeded_in_the_block() -> None:
    def draw(shape) -> torch.Tensor:
        np.random.seed(3)  # noqa: NPY002
        return of_numpy(shape)

    train(Masked(draw))


def healthy_generator_that_draws_before_the_checkpoint() -> None:
    class Before(Masked):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            features = self.lift(images)
            mask = self.draw(features.shape) < self.share
            inner = checkpoint(lambda one: self.block(one).relu() * mask, features, **self.settings)
            return self.head(features + inner)

    train(Before(own_generator()))
