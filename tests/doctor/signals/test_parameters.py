"""The ledger of parameters: each parameter of an optimizer trains, or has a fate and a reason."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from doctor.loops import batches, classifier
from halfstep.doctor import Evidence, Watch, diagnose
from halfstep.doctor.signals.ledgers.parameters import ParameterLedger
from halfstep.doctor.signals.ledgers.switches import ModeLedger
from halfstep.doctor.signals.ledgers.writes import WriteLedger


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))


def train(model, optimizer, *, count: int = 20, forward=None, after=None) -> None:
    for number, (images, labels) in enumerate(batches(count)):
        optimizer.zero_grad()
        outputs = model(images) if forward is None else forward(images)
        nn.functional.cross_entropy(outputs, labels).backward()
        optimizer.step()
        if after is not None:
            after(number)


def watched(program) -> Evidence:
    with Watch() as watch:
        program()
    assert not watch.troubles, watch.troubles
    return watch.close()


def fates(program) -> dict[tuple[str, str], int]:
    ledger = watched(program).of(ParameterLedger)
    return {(each.fate, each.why): each.count for each in ledger.parts}


def test_parameters_that_train_have_no_fate() -> None:
    def program() -> None:
        model = layers()
        train(model, torch.optim.SGD(model.parameters(), lr=0.1))

    assert fates(program) == {}


def test_a_cast_after_training_makes_nothing_stand_still() -> None:
    def program() -> None:
        model = layers()
        model[3].bias.data.fill_(256.0)
        train(model, torch.optim.SGD(model.parameters(), lr=0.1))
        model.bfloat16()

    assert fates(program) == {}


def test_each_reason_for_standing_still_is_told_apart() -> None:
    def program() -> None:
        model = layers()
        model.unused = nn.Linear(2, 2)
        model.frozen = nn.Linear(2, 2).requires_grad_(requires_grad=False)
        for number in (0, 1):
            model[number].bias.data.fill_(1e6)  # no update of fp32 changes it
        groups = [
            {"params": [model[0].weight, model[0].bias, model[1].bias]},
            {"params": model[3].parameters(), "lr": 0.0},
            {"params": [*model.unused.parameters(), *model.frozen.parameters()]},
        ]
        optimizer = torch.optim.SGD(groups, lr=1e-3)
        train(
            model, optimizer, forward=lambda images: model[3](model[2](model[1](model[0](images))))
        )

    assert fates(program) == {
        ("still", "rounding"): 2,
        ("still", "rate"): 2,
        ("never", ""): 2,
        ("frozen", ""): 2,
    }


def test_gradients_of_zeros_are_told_from_none() -> None:
    def program() -> None:
        model = layers()
        train(
            model,
            torch.optim.SGD([*model[0].parameters(), *model[3].parameters()], lr=0.1),
            forward=lambda images: model[3](model[0](images).round()),
        )

    assert fates(program) == {("zero", ""): 2}


def test_steps_without_any_gradient_are_counted() -> None:
    def program() -> None:
        model, head = layers(), nn.Linear(3, 3)
        first = torch.optim.SGD(model.parameters(), lr=0.1)

        def after(number: int) -> None:
            first.step()
            first.zero_grad()
            if number == 4:
                model.requires_grad_(requires_grad=False)

        train(
            head,
            torch.optim.SGD(head.parameters(), lr=0.1),
            forward=lambda images: head(model(images)),
            after=after,
        )

    evidence = watched(program)
    owners = {each.parameters: each for each in evidence.of(ParameterLedger).owners}
    assert (owners[6].steps, owners[6].empty, owners[6].last) == (20, 15, 5)
    assert owners[2].empty == 0
    (verdict,) = diagnose(evidence).verdicts
    assert verdict.code == "NO_GRADIENTS"
    assert "after its first 5 steps, the optimizer made 15 steps" in verdict.finding.summary


def test_gradients_that_are_all_zeros_are_a_cause() -> None:
    def program() -> None:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for images, labels in batches(10):
            optimizer.zero_grad()
            (0 * model(images)[:, 0] - labels).square().mean().backward()
            optimizer.step()

    (verdict,) = diagnose(watched(program)).verdicts
    assert (verdict.code, "exactly 0" in verdict.finding.summary) == ("NO_GRADIENTS", True)


@pytest.mark.parametrize(("rate", "code"), [(1e-12, "UPDATES_ROUNDED_AWAY"), (1e-3, None)])
def test_updates_that_are_lost_in_fp32_are_a_cause(rate, code) -> None:
    def program() -> None:
        model = layers()
        train(model, torch.optim.SGD(model.parameters(), lr=rate))

    verdicts = diagnose(watched(program)).verdicts
    assert [each.code for each in verdicts] == ([code] if code else [])


def test_writes_are_booked_by_line_and_what_the_next_step_finds() -> None:
    counts = {"clamp_": 0, "restored": 0}

    def program() -> None:
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def after(number: int) -> None:
            if number % 4 == 1:
                counts["restored"] += 1
                kept = copy.deepcopy(model.state_dict())
                with torch.no_grad():
                    for each in model.parameters():
                        each.mul_(0.5)
                model.load_state_dict(kept)
            elif number % 4 == 3:
                counts["clamp_"] += 1
                model[0].weight.data.clamp_(-0.05, 0.05)

        train(model, optimizer, count=17, after=after)

    ledger = watched(program).of(WriteLedger)
    lines = {each.by: each for each in ledger.lines}
    assert (lines["clamp_"].count, lines["clamp_"].kept) == (counts["clamp_"], counts["clamp_"])
    assert (lines["mul_"].count, lines["mul_"].kept) == (counts["restored"], 0)
    assert (lines["mul_"].most, lines["clamp_"].most) == (6, 1)
    assert ledger.steps[0] == 17


def test_a_write_that_is_not_heard_is_seen_by_its_version() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = classifier()

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.inner(images)

    class Noisy(nn.Module):
        def __init__(self, weight: nn.Parameter) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.weight.add_(0.01)
            return images

    def program() -> None:
        model = Scaled()
        noisy = Noisy(model.inner[0].weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, optimizer, forward=lambda images: model(noisy(images)))

    (line,) = watched(program).of(WriteLedger).lines
    assert (line.by, line.most, line.count) == ("", 1, 19)


def test_modes_are_booked_for_each_layer_from_the_first_step_on() -> None:
    def program() -> None:
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 3))
        model[1].eval()
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), count=5)
        with torch.no_grad():
            model(torch.zeros(2, 6))

    (model,) = watched(program).of(ModeLedger).models
    norm, dropout = model.layers
    assert (norm.kind, norm.training, norm.evaluating) == ("BatchNorm1d", 0, 5)
    assert (dropout.kind, dropout.training, dropout.evaluating) == ("Dropout", 5, 0)
    assert (dropout.disturbed, norm.evaluated) == (1, 1)
