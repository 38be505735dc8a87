"""Random numbers that depend on their purpose alone, not on who draws them and when.

Augmentation draws from torch's, Python's and NumPy's global generators. `seed` gives all three a
state that only the seed, the epoch and the image decide, and `put_back` what was there before, once
a batch, so that neither workers nor a resume nor another image changes what an image gets.
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
    """Return a CPU generator in the state that `numbers` decide."""
    return torch.Generator().manual_seed(derive(*numbers))


def seed(*numbers: int) -> None:
    """Give torch's, Python's and NumPy's global CPU generators a state that `numbers` decide."""
    chosen = derive(*numbers)
    # Not torch.manual_seed: it would reseed the GPU that the model draws its dropout from.
    torch.default_generator.manual_seed(chosen)
    random.seed(chosen)
    np.random.seed(chosen % 2**32)  # noqa: NPY002  (it is what transforms draw from)


@contextmanager
def put_back() -> Iterator[None]:
    """Put the global CPU generators back as they were, whatever is seeded and drawn meanwhile."""
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002  (see above)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])  # noqa: NPY002  (see above)
