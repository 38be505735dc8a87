"""Calls in which targets can broadcast, and the change that reshapes them."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

from doctor.rules.test_rules import codes
from doctor.rules.watched import PROGRAMS, watched
from halfstep.doctor import Watch, diagnose
from halfstep.doctor.tensors.broadcast import broadcast_of


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("broken", "targets = targets.view_as(outputs)"),
        ("broken_in_a_function", "targets = targets.view_as(outputs)"),
        ("broken_in_a_module", "targets = targets.view_as(outputs)"),
        ("broken_for_the_result_of_a_call", "targets = targets.view(-1, 1)"),
        ("broken_targets_with_more_dimensions", "columns = columns.view(-1)"),
    ],
)
def test_targets_that_broadcast_are_reshaped_by_name(name: str, line: str) -> None:
    finding = diagnose(watched("TARGETS_BROADCAST", name, errors=())).verdicts[0].finding
    # In a lambda, no statement can stand before the line, so the change is in words.
    assert f"{line}  # before this line" in [each.lstrip("+ ") for each in finding.change]


@pytest.mark.parametrize(
    "criterion",
    [
        *(torch.sub, torch.subtract, torch.Tensor.sub, lambda one, other: one - other),
        *(functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss),
        *(functional.huber_loss, functional.poisson_nll_loss),
        *(nn.MSELoss(), nn.L1Loss(), nn.SmoothL1Loss(), nn.HuberLoss(), nn.PoissonNLLLoss()),
    ],
    ids=lambda each: getattr(each, "__name__", type(each).__name__),
)
def test_functions_in_which_targets_can_broadcast(criterion) -> None:
    watch = Watch()
    with watch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        PROGRAMS["TARGETS_BROADCAST"].train(
            lambda outputs, targets: criterion(outputs, targets).mean()
        )
    assert codes(watch.close()) == ["TARGETS_BROADCAST"]


def test_sizes_of_nested_tensors_are_not_compared() -> None:
    parts = [torch.ones(3, 6), torch.ones(5, 6)]
    outputs = nn.Linear(6, 1)(torch.nested.as_nested_tensor(parts, layout=torch.jagged))
    assert broadcast_of(torch.sub, [outputs, torch.linspace(-1, 1, 8)]) is None
