"""Inputs with inf or NaN: which call made them, and how certain this is."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from doctor.rules.test_rules import codes
from doctor.rules.watched import watched
from halfstep.doctor import Evidence, Watch, diagnose
from halfstep.doctor.record import Replay

COMPUTED, CORRUPT = "COMPUTED_INPUT_NOT_FINITE", "CORRUPT_BATCH"


@pytest.mark.parametrize(
    ("name", "line", "advice"),
    [
        ("broken_in_place", "images /= images.std(0)", "correction=0"),
        ("broken_by_counts", "1.0 / torch.bincount", "divide by a number that is never 0"),
        ("broken_by_a_logarithm_that_the_loop_assigns", "torch.log(", ".clamp(min=1e-6).log()"),
        ("broken_before_its_argument_is_cleared", "/ buffer.std()", "correction=0"),
        ("broken_by_a_frozen_model", ").half())", "before the cast"),
        ("broken_by_a_logarithm_after_a_spread", "torch.log(images)", ".clamp(min=1e-6).log()"),
        ("broken_by_a_ratio_after_a_spread", "advantages / old", "divisor.clamp(min=1e-6)"),
        ("broken_by_the_inverse_of_zero", "1 / (images", "divisor.clamp(min=1e-6)"),
    ],
)
def test_the_call_that_made_inf_or_nan_is_named(name, line, advice) -> None:
    finding = diagnose(watched(COMPUTED, name, errors=())).verdicts[0].finding
    assert line in finding.site.text
    assert advice in finding.change[-1]


@pytest.mark.parametrize(
    ("name", "confidence"),
    [
        ("broken_before_the_loop_adds_noise", "certain"),
        ("broken_before_a_change_in_place", "likely"),
    ],
)
def test_a_batch_of_unknown_source_is_only_likely_corrupt(name, confidence) -> None:
    finding = diagnose(watched(CORRUPT, name, errors=())).verdicts[0].finding
    assert finding.confidence == confidence
    assert ("computed by the loop before the model" in finding.summary) == (confidence == "likely")


@pytest.mark.parametrize(
    ("name", "checked"),
    [
        ("broken_in_the_targets_of_a_function", "batch['targets']"),
        ("broken_in_the_targets_of_a_module", "batch['targets']"),
        ("broken_in_the_targets_of_an_operator", "targets"),
        ("broken_beside_columns_that_the_loop_computes", "images"),
    ],
)
def test_the_check_of_a_batch_names_the_tensor_that_is_corrupt(name, checked) -> None:
    finding = diagnose(watched(CORRUPT, name, errors=())).verdicts[0].finding
    # In a lambda, no statement can stand before the line, so the change is in words.
    wanted = f"if not torch.isfinite({checked}).all():"
    assert wanted in [each.lstrip("+ ") for each in finding.change]
    if "[" in checked:
        assert finding.facts[0].endswith(f"(sample 3) of {checked}")
        assert 'batch["targets"]' in finding.site.text


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


def test_the_comparison_with_fp32_is_that_of_the_step_itself() -> None:
    replays = [
        Replay(
            "fp32", step, "", finite=finite, loss=1.0, largest_gradient=None, same=None, scale=1.0
        )
        for step, finite in ((3, True), (6, False))
    ]
    evidence = Evidence(replays=tuple(replays))
    assert evidence.fp32_facts(3) == ("the same step in fp32 is finite",)
    assert evidence.fp32_facts(6) == ("the same step in fp32 is not finite either",)
    assert evidence.fp32_facts(7) == ()
