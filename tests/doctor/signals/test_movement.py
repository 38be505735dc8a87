"""What the signals of movement measure, against numbers that follow from the program."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from doctor.loops import batches
from halfstep.doctor import Watch
from halfstep.doctor.record.averages import AverageLedger
from halfstep.doctor.signals.movement.kept_graphs import KeptGraphs
from halfstep.doctor.signals.movement.signs import LossSigns
from halfstep.doctor.signals.movement.units import Units

STEPS = 6


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def evidence(update=lambda average, model: None, *, make=None, loss_of=None, model=None):
    model = model or net()
    average = copy.deepcopy(model)
    make = make or (lambda weights: torch.optim.SGD(weights, lr=0.1))
    optimizer = make(model.parameters())
    with Watch() as watch:
        for images, labels in batches(STEPS):
            optimizer.zero_grad()
            (loss_of or nn.functional.cross_entropy)(model(images), labels).backward()
            optimizer.step()
            update(average, model)
    assert not watch.troubles
    return watch.close()


@torch.no_grad()
def in_place(average, model, kept: float, added: float) -> None:
    for value, other in zip(average.parameters(), model.parameters(), strict=True):
        value.mul_(kept).add_(other, alpha=added)


@torch.no_grad()
def copied(average, model, kept: float, added: float) -> None:
    for value, other in zip(average.parameters(), model.parameters(), strict=True):
        value.copy_(added * other + kept * value)


def assigned(average, model, kept: float, added: float) -> None:
    for value, other in zip(average.parameters(), model.parameters(), strict=True):
        value.data = kept * value.data + added * other.data


@torch.no_grad()
def at_once(average, model, kept: float, added: float) -> None:
    values = list(average.parameters())
    torch._foreach_mul_(values, kept)
    torch._foreach_add_(values, list(model.parameters()), alpha=added)


@pytest.mark.parametrize("way", [in_place, copied, assigned, at_once])
@pytest.mark.parametrize(("kept", "added"), [(0.9, 0.1), (0.25, 0.75), (0.8, 0.3)])
def test_both_factors_follow_from_the_values(way, kept: float, added: float) -> None:
    found = evidence(lambda average, model: way(average, model, kept, added)).of(AverageLedger)
    updates = [each for line in found.lines for each in line.updates]
    assert len(updates) >= STEPS
    for each in updates:
        assert each.kept == pytest.approx(kept, abs=1e-3)
        assert each.added == pytest.approx(added, abs=1e-3)
    assert {each.still for each in found.lines} <= {0, 1}


def test_an_update_with_a_third_tensor_is_not_known() -> None:
    @torch.no_grad()
    def update(average, model) -> None:
        for value, other in zip(average.parameters(), model.parameters(), strict=True):
            value.lerp_(other, 0.1).add_(torch.randn_like(value), alpha=0.1)

    assert not any(line.updates for line in evidence(update).of(AverageLedger).lines)


def test_gradient_descent_goes_against_the_gradient_and_decay_to_zero() -> None:
    samples = evidence().samples
    assert samples
    assert all(each.uphill == pytest.approx(-1, abs=1e-3) for each in samples)
    ascent = evidence(make=lambda weights: torch.optim.SGD(weights, lr=0.1, maximize=True)).samples
    assert all(each.uphill == pytest.approx(1, abs=1e-3) for each in ascent)
    decayed = evidence(make=lambda weights: torch.optim.AdamW(weights, lr=1e-6, weight_decay=1e5))
    assert all(each.inward > 0.99 for each in decayed.samples)


def test_sizes_of_a_sample_are_those_of_the_step() -> None:
    model = net()
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    first = next(iter(batches(1)))
    nn.functional.cross_entropy(model(first[0]), first[1]).backward()
    slopes = {name: each.grad.norm() / each.norm() for name, each in model.named_parameters()}
    model.zero_grad()
    sample = {each.parameter: each for each in evidence(model=model).samples if not each.iteration}
    for name, each in sample.items():
        assert each.norm == pytest.approx(float(before[name].norm()), rel=1e-5)
        assert each.relative_gradient == pytest.approx(float(slopes[name]), rel=1e-5)
        assert each.relative_update == pytest.approx(0.1 * float(slopes[name]), rel=1e-3)


@pytest.mark.parametrize(
    ("loss_of", "functions"),
    [
        (nn.functional.cross_entropy, ()),
        (lambda scores, labels: -nn.functional.cross_entropy(scores, labels), ("cross_entropy",)),
        (lambda scores, labels: 2 - 0.5 * scores.square().mean(), ("square",)),
        (lambda scores, labels: scores.square().mean() - scores.abs().sum(), ("abs",)),
        (lambda scores, labels: -(-scores.square()).mean() / 2, ()),
        (lambda scores, labels: scores.log_softmax(-1)[:, 0].sum(), ()),
        (
            lambda scores, labels: scores.log_softmax(-1).gather(1, labels[:, None]).mean(),
            ("log-probabilities",),
        ),
        (
            lambda scores, labels: -nn.functional.nll_loss(scores.sigmoid(), labels),
            ("cross_entropy",),
        ),
    ],
)
def test_the_sign_of_a_loss_function(loss_of, functions: tuple[str, ...]) -> None:
    lines = evidence(loss_of=loss_of).of(LossSigns).lines
    assert tuple(name for line in lines for name in line.functions) == functions


def test_rows_that_are_equal_after_training() -> None:
    model = net()
    nn.init.constant_(model[0].weight, 0.1)
    nn.init.zeros_(model[0].bias)
    assert not evidence(model=model).of(Units).equal  # the next layer tells its units apart
    nn.init.constant_(model[0].weight, 0.1)
    nn.init.zeros_(model[0].bias)
    nn.init.constant_(model[2].weight, 0.1)
    (equal,) = evidence(model=model).of(Units).equal
    assert (equal.name, equal.rows, equal.feeds) == ("0.weight", 16, True)


@pytest.mark.parametrize(("is_number", "steps"), [(True, 0), (False, STEPS)])
def test_a_running_sum_keeps_graphs_unless_it_is_a_number(is_number: bool, steps: int) -> None:
    total, model = 0.0, net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Watch() as watch:
        for images, labels in batches(STEPS):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item() if is_number else loss
    assert watch.close().of(KeptGraphs).steps == steps
