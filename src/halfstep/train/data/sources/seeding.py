"""Random numbers that depend only on their purpose, not on the process or time that draws them.

Augmentation draws from torch's, Python's and NumPy's global generators. `seed` sets all three to a
state that depends only on the seed, the epoch and the image. `put_back` restores their former
states after each batch. So the augmentation of an image does not depend on the number of workers,
on a resume or on other images.
"""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING

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
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002  (see above)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])  # noqa: NPY002  (see above)
