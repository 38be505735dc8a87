"""What tells the names in a state from those of a module."""

from __future__ import annotations

import pytest
import torch

from halfstep.doctor.tensors.renamed import Renaming, renaming

SHAPES = {"a.weight": torch.Size([2, 3]), "a.bias": torch.Size([2]), "b.weight": torch.Size([4])}
STATE = {name: torch.zeros(shape) for name, shape in SHAPES.items()}


@pytest.mark.parametrize(
    ("state", "change"),
    [
        ({f"net.{name}": each for name, each in STATE.items()}, Renaming(3, removed="net.")),
        ({f"x.y.{name}": each for name, each in STATE.items()}, Renaming(3, removed="x.y.")),
        ({"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}, Renaming(2, added="a.")),
        ({"epoch": 3, "model": STATE}, Renaming(3, inside="model")),
        ({"net.a.weight": torch.zeros(3, 2)}, Renaming()),
        ({"one": torch.zeros(2), "epoch": 3}, Renaming()),
    ],
)
def test_the_change_after_which_the_most_names_match(state, change: Renaming) -> None:
    assert renaming(state, SHAPES) == change
