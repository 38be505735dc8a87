"""Inputs with inf or NaN, and targets."""

from __future__ import annotations

import torch
from torch.nn import functional

from doctor.rules.test_rules import codes
from doctor.rules.test_variants import watched
from halfstep.doctor import Watch

COMPUTED = "COMPUTED_INPUT_NOT_FINITE"


def test_a_weight_that_no_loss_depends_on_does_not_hide_the_learning_rate() -> None:
    evidence = watched(COMPUTED, "diverging_beside_an_unused_weight", errors=())
    assert codes(evidence) == ["LEARNING_RATE_TOO_HIGH"]


def test_targets_of_a_bad_last_step_are_measured_once() -> None:
    with Watch() as watch:
        model = torch.nn.Linear(6, 1)
        outputs = model(torch.randn(8, 6))[:, 0].abs().neg().sqrt()
        targets = torch.full((8,), 2.0)
        functional.binary_cross_entropy_with_logits(outputs, targets).backward()
    evidence = watch.close()
    assert [each.highest for each in evidence.targets] == [2.0]
