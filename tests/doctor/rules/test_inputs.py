"""Inputs with inf or NaN, and targets."""

from __future__ import annotations

import torch
from torch.nn import functional

from halfstep.doctor import Watch


def test_targets_of_a_bad_last_step_are_measured_once() -> None:
    with Watch() as watch:
        model = torch.nn.Linear(6, 1)
        outputs = model(torch.randn(8, 6))[:, 0].abs().neg().sqrt()
        targets = torch.full((8,), 2.0)
        functional.binary_cross_entropy_with_logits(outputs, targets).backward()
    evidence = watch.close()
    assert [each.highest for each in evidence.targets] == [2.0]
