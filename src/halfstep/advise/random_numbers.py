"""Keeps the random numbers that a user's code draws separate from those of the program."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from halfstep.train.store.random_state import capture, restore

if TYPE_CHECKING:
    from collections.abc import Iterator


class RandomNumbers:
    """A separate state of the random number generators of Python, NumPy and torch.

    Args:
        seed: The initial seed.
    """

    def __init__(self, seed: int) -> None:
        with kept():
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002  (the one that the user's code draws from)
            self._state = capture()

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Draw from this state inside the block; the state outside is not affected."""
        with drawn_from(self._state):
            yield
            self._state = capture()


@contextmanager
def drawn_from(state: dict[str, Any]) -> Iterator[None]:
    """Draw from a state that `capture` returned, inside the block; the state outside stays."""
    with kept():
        restore(state)
        yield


@contextmanager
def kept() -> Iterator[None]:
    """Restore the state of the random number generators after the block."""
    outside = capture()
    try:
        yield
    finally:
        restore(outside)
