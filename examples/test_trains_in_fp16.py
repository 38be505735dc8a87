"""Tests that a model trains in fp16 as in fp32; such a test fails when a change breaks that.

pytest examples/test_trains_in_fp16.py
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from halfstep.testing import assert_survives


class Classifier(nn.Module):
    """Classifies images of 16 bits per pixel.

    Args:
        largest: What pixels are divided by. Undivided, their products exceed 65504, the largest
            number of fp16.
    """

    def __init__(self, largest: float = 65535) -> None:
        super().__init__()
        self.largest = largest
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the logits of the classes, shape (batch, 3)."""
        return self.layers(pixels / self.largest)


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return four batches of flat images and labels."""
    generator = torch.Generator().manual_seed(0)
    pixels = [torch.randint(65536, (16, 64), generator=generator).float() for _ in range(4)]
    return [(each, each[:, :3].argmax(1)) for each in pixels]


def test_the_model_trains_in_fp16() -> None:
    """Passes; without a GPU, fp16 is rehearsed."""
    torch.manual_seed(0)
    assert_survives(Classifier(), batches(), recipe="fp16")


def test_pixels_that_are_not_divided_are_found() -> None:
    """Shows what a failure says: what is wrong, and doctor's diagnosis."""
    torch.manual_seed(0)
    with pytest.raises(AssertionError, match="does not survive fp16") as failure:
        assert_survives(Classifier(largest=1), batches(), recipe="fp16")
    print(failure.value)
