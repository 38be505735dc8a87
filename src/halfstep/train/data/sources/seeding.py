"""Random numbers that depend only on their purpose, not on the process or time that draws them.

Augmentation draws from torch's, Python's and NumPy's global generators. `seed` sets all three to a
state that depends only on the seed, the epoch and the image. `put_back` restores their former
states after each batch. So the augmentation of an image does not depend on the number of workers,
on a resume or on other images.
"""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


def derive(*numbers: int) -> int:
    """Return a 64-bit seed that depends on every one of `numbers` and on their order.

    NumPy's SeedSequence (after O'Neill's seed_seq) mixes them, so that neighbouring inputs give
    unrelated generators.
    """
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def generator(*numbers: int) -> torch.Generator:
    """Return a CPU generator that is seeded with `numbers`."""
    return torch.Generator().manual_seed(derive(*numbers))


def seed(*numbers: int) -> None:
    """Seed torch's, Python's and NumPy's global CPU generators with `numbers`."""
    chosen = derive(*numbers)
    # Not torch.manual_seed, which would also reseed the GPU's generator, used for dropout.
    torch.default_generator.manual_seed(chosen)
    random.seed(chosen)
    np.random.seed(chosen % 2**32)  # noqa: NPY002  (it is what transforms draw from)


@contextmanager
def put_back() -> Iterator[None]:
    """Restore the states of the global CPU generators when the block ends."""
    before = _states()
    try:
        yield
    finally:
        _restore(before)


class Stream:
    """Random numbers of the global CPU generators that are drawn in several blocks.

    Args:
        numbers: The numbers that determine the random numbers.
    """

    def __init__(self, *numbers: int) -> None:
        with put_back():
            seed(*numbers)
            self._now = _states()

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Draw the next numbers of the stream in the block; the states outside stay as they are."""
        with put_back():
            _restore(self._now)
            try:
                yield
            finally:
                self._now = _states()


_States = tuple[torch.Tensor, Any, Any]


def _states() -> _States:
    return torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002  (see above)


def _restore(states: _States) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])  # noqa: NPY002  (see above)
