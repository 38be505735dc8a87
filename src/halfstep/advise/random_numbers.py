"""Random numbers that code of the user's draws, apart from those of the program around it."""

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
    """Python's, NumPy's and torch's random numbers, in a state of their own.

    Args:
        seed: Where they start.
    """

    def __init__(self, seed: int) -> None:
        with kept():
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002  (the one that the user's code draws from)
            self._state = capture()

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Draw from them inside; what is drawn outside goes on as if nothing had been."""
        with drawn_from(self._state):
            yield
            self._state = capture()


@contextmanager
def drawn_from(state: dict[str, Any]) -> Iterator[None]:
    """Draw random numbers from a state that `capture` returned, and leave those outside alone."""
    with kept():
        restore(state)
        yield


@contextmanager
def kept() -> Iterator[None]:
    """Put random numbers back at the end to where they were."""
    outside = capture()
    try:
        yield
    finally:
        restore(outside)
