"""What a cause that may do no harm costs: measured after the run, by taking the steps twice."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch.nn import functional

from doctor.loops import batches
from doctor.programs.formats import weights_rounded_in_place
from halfstep.doctor import Watch, diagnose
from halfstep.doctor.record.trials import Trial, Trials
from halfstep.doctor.replay import last_steps
from halfstep.doctor.rules import rules


def evidence_of(program):
    watch = Watch()
    with watch:
        program()
    assert not watch.troubles, watch.troubles
    return watch.close()


def test_a_model_that_is_cast_to_fp16_and_back_with_a_healthy_loss_is_only_noted() -> None:
    evidence = evidence_of(weights_rounded_in_place.harmless_by_to)
    diagnosis = diagnose(evidence)
    assert not diagnosis.verdicts
    (note,) = [each for each in diagnosis.notes if "did no harm" in each]
    (trial,) = evidence.of(Trials).found
    assert trial.harms is False
    assert f"{trial.with_cause:#.4g} against {trial.without:#.4g} after 16 steps" in note


def test_a_rounding_that_costs_a_part_of_the_progress_is_certain_and_says_how_much() -> None:
    evidence = evidence_of(weights_rounded_in_place.broken)
    (verdict,) = diagnose(evidence).verdicts
    (trial,) = evidence.of(Trials).found
    assert verdict.finding.confidence == "certain"
    assert f"{trial.with_cause:#.4g} against {trial.without:#.4g}" in verdict.finding.facts[0]


def test_the_losses_are_those_of_plain_steps_on_the_last_batches() -> None:
    """With `copy.deepcopy`, a plain loop and float64 losses as an independent reference."""
    model, optimizer = weights_rounded_in_place.model_and_optimizer()
    with Watch() as watch:
        for images, labels in batches(6):
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            model.bfloat16()
            model.float()
    (trial,) = watch.close().of(Trials).found
    last = list(batches(6))[-3:]

    def taken(*, rounded: bool) -> float:
        mine = copy.deepcopy(model)
        plain = torch.optim.SGD(mine.parameters(), lr=0.01)
        for number in range(16):
            if rounded:
                mine.bfloat16()
                mine.float()
            images, labels = last[number % 3]
            plain.zero_grad()
            functional.cross_entropy(mine(images), labels).backward()
            plain.step()
        with torch.no_grad():
            losses = [functional.cross_entropy(mine(images), labels) for images, labels in last]
        return sum(each.item() for each in losses) / 3

    assert trial.with_cause == pytest.approx(taken(rounded=True), rel=1e-5)
    assert trial.without == pytest.approx(taken(rounded=False), rel=1e-5)


@pytest.mark.parametrize("reason", ["SECONDS", "MEMORY"])
def test_what_cannot_be_measured_is_possible(monkeypatch, reason: str) -> None:
    monkeypatch.setattr(last_steps, reason, 0.0)
    (verdict,) = diagnose(evidence_of(weights_rounded_in_place.broken)).verdicts
    assert verdict.finding.confidence == "possible"
    assert "what it costs is not known: " in verdict.finding.facts[-1]


def test_without_a_measurement_in_the_evidence_a_finding_is_possible() -> None:
    evidence = evidence_of(weights_rounded_in_place.broken).without(Trials.signal)
    (verdict,) = diagnose(evidence).verdicts
    assert verdict.finding.confidence == "possible"


def state_of(model, optimizer) -> list[torch.Tensor]:
    held = [*model.parameters(), *model.buffers()]
    return [*held, *(each for state in optimizer.state.values() for each in state.values())]


def test_the_measurement_changes_neither_the_model_nor_the_optimizer_nor_random_numbers() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(), torch.nn.Linear(16, 3)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    steps = []
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    watch = Watch().start()
    for images, labels in batches(6):
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        scheduler.step()
        model.half()
        model.float()
    before = [each.clone() for each in state_of(model, optimizer)]
    gradients = [each.grad for each in model.parameters()]
    generator, made = torch.get_rng_state(), len(steps)
    evidence = watch.close()
    assert evidence.of(Trials).found[0].steps == 16
    after = state_of(model, optimizer)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert [each.grad for each in model.parameters()] == gradients
    assert torch.equal(torch.get_rng_state(), generator)
    assert len(steps) == made


@pytest.mark.parametrize(
    ("first", "with_cause", "without", "harms"),
    [
        (1.0, 0.5, 0.5, False),
        (1.0, 0.53, 0.5, True),
        (1.0, 0.45, 0.5, False),
        (1.0, math.nan, 0.5, True),
        (1.0, 0.5, math.nan, None),
        (1.0, 1.0, 1.0, None),
        (1.0, 1.0, 0.9995, True),
    ],
)
def test_harm_is_a_part_of_the_progress_and_unknown_without_progress(
    first: float, with_cause: float, without: float, harms: bool | None
) -> None:
    assert Trial("CODE", 16, first, with_cause, without).harms is harms


def test_only_causes_that_make_no_inf_or_nan_name_a_trial() -> None:
    named = [rule for rule in rules() if rule.trial is not None]
    assert named
    assert all(rule.harmless for rule in named)
