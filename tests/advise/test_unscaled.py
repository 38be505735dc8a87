"""Recipes in fp16 without a loss scale are named, also where nothing was trained."""

from __future__ import annotations

import pytest
import torch

from halfstep.advise.unscaled import lines
from halfstep.recipe import recipe


def test_only_recipes_that_compute_in_fp16_and_do_not_scale_the_loss_are_named() -> None:
    (line,) = lines(["half", "bf16", "fp16", "o2", "o3", "half", "tf32", "bf16-true"])
    assert line.startswith("half and o3 do not scale the loss: gradients below 3e-08 become 0")
    assert lines(["fp16", "o2", "bf16-sr", "fp32"]) == []


@pytest.mark.parametrize("name", ["half", "half-bn32", "o3"])
def test_the_gradients_that_the_line_names_become_0_in_fp16(name: str) -> None:
    assert recipe(name).lacks_loss_scale
    below, above = torch.tensor([2.9e-8, 3.1e-8]).half()
    assert (below == 0, above > 0) == (True, True)
