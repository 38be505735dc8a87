"""Random numbers that code of the user's draws, apart from those of the program around it."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


class RandomNumbers:
    """Python's, NumPy's and torch's random numbers on the CPU, in a state of their own.

    Args:
        seed: Where they start.
    """

    def __init__(self, seed: int) -> None:
        outside = _state()
        try:
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002  # the one that the user's code draws from
            self._state = _state()
        finally:
            _restore(outside)

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Draw from them inside; what is drawn outside goes on as if nothing had been."""
        outside = _state()
        _restore(self._state)
        try:
            yield
        finally:
            self._state = _state()
            _restore(outside)


def _state() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002


def _restore(state: tuple[Any, ...]) -> None:
    python, of_numpy, of_torch = state
    random.setstate(python)
    np.random.set_state(of_numpy)  # noqa: NPY002
    torch.set_rng_state(of_torch)
