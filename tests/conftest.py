"""What several floors' tests share: real digits, small enough to train on in a second."""

from __future__ import annotations

import signal
from typing import NamedTuple

import pytest
import torch
from sklearn.datasets import load_digits

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in its background deaf to Ctrl-C, and children inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Digits(NamedTuple):
    """Real scans, shape (n, 1, 8, 8) with values from 0 to 1, and their classes."""

    images: torch.Tensor
    labels: torch.Tensor

    def batches(self, size: int, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return `count` batches of `size`, starting over where the scans end."""
        places = torch.arange(size * count).reshape(count, size) % len(self.labels)
        return [(self.images[place], self.labels[place]) for place in places]


@pytest.fixture(scope="session")
def digits() -> Digits:
    """The first 512 scans of scikit-learn's digits."""
    scans = load_digits()
    images = torch.tensor(scans.images[:512], dtype=torch.float32)[:, None] / 16
    return Digits(images, torch.tensor(scans.target[:512]))
