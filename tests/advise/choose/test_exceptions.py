"""Exceptions are found where fp16 breaks a network, and nowhere else."""

from __future__ import annotations

import copy
import json
import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from halfstep.advise.choose import drift
from halfstep.advise.choose.advice import MOST_PASSES, advise
from halfstep.advise.choose.exceptions import find_exceptions
from halfstep.advise.choose.record import Record, record, replayed
from halfstep.advise.choose.rehearse import (
    CLOSE,
    LIMIT,
    over_each_step,
    over_two_steps,
    rehearse,
)
from halfstep.advise.subject import Subject
from halfstep.formats import FORMATS
from halfstep.recipe import recipe as find_recipe
from halfstep.train.store.random_state import capture

if TYPE_CHECKING:
    from halfstep.advise.choose.trial import Trial


class Gate(nn.Module):
    """Healthy; each subclass has one thing that fp16 does not survive."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values * torch.sigmoid(self.linear(values))


class Square(Gate):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        large = self.linear(values) * 1000
        return values + large / (large * large).mean(-1, keepdim=True).sqrt()


class Distances(Gate):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        mapped = self.linear(values)
        apart = mapped[..., None] - mapped[..., None, :]
        return values + (apart * apart + 1e-12).sqrt().mean(-1)


class LargeWeights(Gate):
    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.linear.weight *= 256

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + torch.tanh(self.linear(values) / 256)


class Mixing(Gate):
    """Divides by counts of its own, which are fp32, before a layer: half parameters refuse that."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        total = torch.cumsum(values, 1)
        return self.linear(total / (torch.arange(1, 17) * 1.0))


class RootOfZeros(Gate):
    """Its slope overflows where gradients are large; so does the scaled gradient of its result."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        mapped = self.linear(values)
        mapped = mapped * (mapped > 0.5).to(mapped.dtype)
        return 3e3 * torch.sqrt(mapped * mapped + 1e-12)


class Rotary(Gate):
    """Its angles are a matrix product of positions, which autocast rounds."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(600.0)[:, None] @ torch.tensor([[0.1, 0.01]])
        return super().forward(values) + angles.float().sin().mean()


class Net(nn.Module):
    def __init__(self, gate: type[nn.Module]) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.gate = gate()
        self.head = nn.Linear(16, 3)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.head(self.gate(torch.relu(self.first(values))))


def subject(gate: type[nn.Module] = Gate) -> Subject:
    chance = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    batches = []
    for _ in range(8):
        labels = torch.randint(0, 3, (16,), generator=chance)
        values = torch.randn(16, 8, generator=chance) + labels[:, None]
        batches.append((values, labels))
    return Subject(
        gate.__name__,
        Net(gate),
        lambda model, batch: functional.cross_entropy(model(batch[0]).float(), batch[1]),
        batches,
        lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
    )


def trial(gate: type[nn.Module], recipe: str) -> tuple[Trial, Record]:
    about = subject(gate)
    recorded = record(about)
    return find_exceptions(about, recorded, recipe), recorded


@pytest.mark.parametrize("recipe", ["fp16", "bf16", "o2", "bf16-sr", "bf16-kahan", "half-bn32"])
def test_healthy_network_needs_no_exception(recipe: str) -> None:
    found, _ = trial(Gate, recipe)
    assert (found.exceptions, found.rejected) == ({}, "")
    assert found.spec["base"] == recipe
    assert set(found.spec) <= {"base", "loss_scale"}
    assert set(found.spec.get("loss_scale", ())) <= {"init"}
    assert find_recipe(found.spec).settings() == found.recipe.settings()


@pytest.mark.parametrize(
    ("gate", "recipe", "excepted"),
    [
        (Square, "fp16", "gate.mul"),
        (Square, "o2", "gate.mul gate.mean gate.sqrt"),
        (Distances, "fp16", "gate.mul"),
        (Distances, "o2", "gate.mul gate.add gate.sqrt"),
        (Mixing, "o2", "gate.linear"),
        (LargeWeights, "half-bn32", "gate.linear"),
    ],
)
def test_what_fp16_breaks_is_excepted_and_nothing_else(
    gate: type[nn.Module], recipe: str, excepted: str
) -> None:
    found, recorded = trial(gate, recipe)
    assert list(found.exceptions) == excepted.split()
    assert not found.rejected
    assert found.rehearsal is not None
    assert found.rehearsal.gradient_damage < 1e-3
    assert recorded.steps + found.passes <= 20


@pytest.mark.parametrize("recipe", ["bf16", "fp16", "o2"])
def test_positions_that_become_equal_stay_in_fp32(recipe: str) -> None:
    found, _ = trial(Rotary, recipe)
    assert list(found.exceptions) == (["gate.matmul"] if recipe == "bf16" else [])
    if recipe == "bf16":
        assert "represents every whole number only up to 256" in found.exceptions["gate.matmul"]


def test_scale_allows_for_gradients_that_leave_an_exception_in_half() -> None:
    slowly = replace(
        subject(RootOfZeros), optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1e-7)
    )
    found = find_exceptions(slowly, record(slowly), "o2")
    assert not found.rejected
    assert "gate.sqrt" in found.exceptions
    assert found.recipe.scaling is not None
    assert found.recipe.scaling.init < 2.0**16


class SquareOutside(nn.Module):
    """The model's own forward has the fault, in no module that an exception could name."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        large = self.first(values) * 1000
        return self.head(large / (large * large).mean(-1, keepdim=True).sqrt())


@pytest.mark.parametrize("recipe", ["fp16", "o2", "half-bn32"])
def test_operators_of_the_model_itself_are_excepted(recipe: str) -> None:
    about = replace(subject(), model=SquareOutside())
    found = find_exceptions(about, record(about), recipe)
    assert not found.rejected
    assert set(found.exceptions) <= {"op:mul", "op:mean", "op:sqrt", "op:div"}
    assert "op:mul" in found.exceptions
    assert found.rehearsal is not None
    assert found.rehearsal.gradient_damage < 1e-3


@pytest.mark.parametrize("gate", [Square, Distances, LargeWeights])
def test_bf16_under_autocast_needs_no_exception(gate: type[nn.Module]) -> None:
    assert trial(gate, "bf16")[0].exceptions == {}


def test_recipe_that_no_exception_saves_is_rejected_with_the_reason() -> None:
    slow = replace(subject(), optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1e-5))
    recorded = record(slow)
    assert (
        "the update is rounded away in 6 parameters"
        in find_exceptions(slow, recorded, "bf16-true").rejected
    )
    assert not find_exceptions(slow, recorded, "bf16-sr").rejected
    assert not find_exceptions(slow, recorded, "bf16").rejected


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.RMSprop, torch.optim.NAdam])
def test_eps_that_is_zero_in_fp16_rejects_what_steps_in_fp16(
    kind: type[torch.optim.Optimizer],
) -> None:
    def asked(eps: float) -> Subject:
        return replace(subject(), optimizer=lambda model: kind(model.parameters(), 1e-3, eps=eps))

    usual = asked(1e-8)
    recorded = record(usual)
    found = find_exceptions(usual, recorded, "half")
    assert "eps of 1e-08 is zero in fp16" in found.rejected
    assert found.passes == 0  # it takes none to see that
    for name in ("o2", "bf16-true", "fp16"):
        assert "the optimizer's eps" not in find_exceptions(usual, recorded, name).rejected
    raised = asked(1e-4)
    recorded = record(raised)
    # It is no zero, but squares of gradients are, and so updates are many times too large.
    assert (
        "rounding errors of the updates add up"
        in find_exceptions(raised, recorded, "half").rejected
    )
    assert not find_exceptions(raised, recorded, "o2").rejected


class Drawing(nn.Module):
    """Has buffers that training moves, and draws random numbers of torch, NumPy and Python."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 16), nn.BatchNorm1d(16)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(16, 3)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(torch.relu(self.norm(self.first(values))))
        if random.random() < 0.5:
            hidden = hidden * (1 + 0.1 * float(np.random.rand()))  # noqa: NPY002  (as users do)
        return self.head(hidden)


def drawing() -> Subject:
    about = replace(subject(), model=Drawing())
    about.model.eval()
    return about


EVERY = ["fp16", "half-bn32", "bf16-sr"]


def test_nothing_of_the_users_is_changed() -> None:
    about = drawing()
    before, chance = copy.deepcopy(about.model.state_dict()), capture()
    batches = copy.deepcopy(about.batches)
    advise(about, EVERY)
    assert capture() | {"torch": None} == chance | {"torch": None}
    assert torch.equal(capture()["torch"], chance["torch"])
    after = about.model.state_dict()
    assert {"norm.running_mean", "norm.num_batches_tracked"} <= before.keys()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(param.grad is None for param in about.model.parameters())
    assert not any(module.training for module in about.model.modules())
    for mine, theirs in zip(batches, about.batches, strict=True):
        assert all(map(torch.equal, mine, theirs))


def test_same_seed_gives_the_same_advice() -> None:
    about, found = drawing(), []
    for given in (0, 0, 1):
        # What the program around has drawn is no part of it.
        torch.rand(given + 1), np.random.rand(), random.random()  # noqa: NPY002  (as users do)
        found.append(json.dumps(advise(about, EVERY, seed=given).as_json()))
    assert found[0] == found[1]
    assert found[0] != found[2]


@pytest.mark.parametrize("gate", [Gate, Square, LargeWeights])
def test_passes_are_those_that_were_computed_and_at_most_sixty(
    gate: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    about = subject(gate)
    monkeypatch.setattr(drift, "TRAINING", 2)  # steps of the optimizer alone are no passes
    with FlopCounterMode(display=False) as step:
        about.loss(about.copied(), about.batches[0]).backward()
    with FlopCounterMode(display=False) as all_of_it:
        found = advise(about)
    # The first layer passes no gradient on: a forward is a little more than a third of this step.
    computed = all_of_it.get_total_flops() / step.get_total_flops()
    assert found.passes == pytest.approx(computed, abs=0.05 * len(found.trials))
    assert found.passes <= MOST_PASSES


def test_search_ends_at_its_limit_of_passes() -> None:
    about = subject(Square)
    recorded = record(about)
    free = find_exceptions(about, recorded, "fp16")
    held = find_exceptions(about, recorded, "fp16", most=6)
    assert held.passes <= 6 < free.passes
    assert set(free.exceptions) <= set(held.exceptions) or "passes" in held.rejected


class Growing(Gate):
    """Beyond fp16 in the third forward pass of a training, and not afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        scale = torch.where(self.seen == 3, 1e5, 1.0)
        return values + torch.tanh((self.linear(values) * scale) / scale)


class SteepOnce(Growing):
    """Amplifies rounding in the third step of a training, and not afterwards."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        scale = torch.where(self.seen == 3, 300.0, 1.0)
        return values + torch.sin(self.linear(values).float() * scale)


class CoarseEarlier(Growing):
    """Rounds its values to multiples of an offset's ulp, which is smaller in the eighth step."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        offset = torch.where(self.seen == 8, 100.0, 512.0)
        return values + 1.5 * torch.tanh((self.linear(values) + offset) - offset)


class WideOutside(Gate):
    """Autocast runs `pow` in fp32, where its results have room."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + torch.log1p((self.linear(values) * 100).pow(4))


class AlmostOverflowing(Gate):
    """Its sums reach 40,000, which fp16 holds: the rehearsed step is right."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(values)
        wide = hidden * (40_000 / hidden.detach().abs().max().float()).to(hidden.dtype)
        return values + wide.float().mul(1e-5).to(values.dtype)


class LargestMask(Gate):
    """Fills in -60,000, as masks do, which softmax makes zeros of."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        scores = self.linear(values).masked_fill(values > 0, -60_000.0)
        return values + torch.softmax(scores, -1)


def test_results_in_the_last_bit_before_overflow_become_exceptions() -> None:
    found, _ = trial(AlmostOverflowing, "half")
    assert (found.rejected, found.exceptions.keys()) == ("", {"gate"})
    masked, recorded = trial(LargestMask, "half")
    assert any(ranges.headroom(FORMATS["fp16"]) == 0 for ranges in recorded.forward.values())
    assert (masked.rejected, masked.exceptions) == ("", {})


def test_overflow_in_an_earlier_step_keeps_its_exception() -> None:
    found, recorded = trial(Growing, "half")
    assert any(
        FORMATS["fp16"].max < 2.0 ** (ranges.highest or 0) for ranges in recorded.forward.values()
    )
    assert {"gate", "gate.mul"} & set(found.exceptions)
    assert found.headroom[0] >= 0


def test_damage_is_that_of_the_steepest_step_too() -> None:
    about, bf16 = subject(SteepOnce), find_recipe("bf16")
    recorded = record(about)
    found = rehearse(about, recorded, bf16)
    assert not found.wrong(bf16)
    there = rehearse(about, recorded.at(recorded.steepest), bf16)
    mean = over_two_steps(found, about, recorded, bf16)
    expected = (7 * found.gradient_damage + there.gradient_damage) / 8
    assert mean.gradient_damage == pytest.approx(expected)
    assert mean.wrong(bf16)
    searched = find_exceptions(about, recorded, "bf16")
    assert searched.exceptions or searched.rejected


def test_damage_near_the_limit_is_the_mean_of_every_recorded_step() -> None:
    about, bf16 = subject(CoarseEarlier), find_recipe("bf16")
    recorded = record(about)
    found = rehearse(about, recorded, bf16)
    assert CLOSE < found.gradient_damage < LIMIT
    model = about.copied()
    optimizer = about.optimizer(model)
    damages = []
    for batch, moment in zip(about.batches, replayed(about, recorded), strict=False):
        optimizer.zero_grad()
        about.loss(model, batch).backward()
        for name, param in model.named_parameters():
            torch.testing.assert_close(moment.gradient[name], param.grad)
        damages.append(rehearse(about, recorded.at(moment), bf16).gradient_damage)
        optimizer.step()
    assert len(damages) == 7
    mean = over_each_step(found, about, recorded, bf16)
    assert mean.gradient_damage == pytest.approx((sum(damages) + found.gradient_damage) / 8)
    assert mean.wrong(bf16)
    assert find_exceptions(about, recorded, "bf16").exceptions.keys() == {"gate"}


def test_a_step_without_a_gradient_has_no_damage() -> None:
    given, bf16 = subject(), find_recipe("bf16")
    zero = given.batches[1]
    about = replace(
        given, loss=lambda model, batch: given.loss(model, batch) * float(batch is not zero)
    )
    recorded = record(about)
    moments = [moment for moment in replayed(about, recorded) if moment.steepness]
    assert len(moments) == 6
    found = rehearse(about, recorded, bf16)
    damages = [rehearse(about, recorded.at(each), bf16).gradient_damage for each in moments]
    mean = over_each_step(found, about, recorded, bf16)
    assert mean.gradient_damage == pytest.approx((sum(damages) + found.gradient_damage) / 8)


def test_an_optimizer_with_several_eps_is_advised_on() -> None:
    about = replace(
        subject(), optimizer=lambda model: torch.optim.Adafactor(model.parameters(), lr=1e-3)
    )
    recorded = record(about)
    assert not find_exceptions(about, recorded, "bf16").rejected
    assert (
        "the update is rounded away in 1 parameter"
        in find_exceptions(about, recorded, "half").rejected
    )


def test_results_in_fp32_of_half_tensors_have_the_room_of_fp32() -> None:
    found, recorded = trial(WideOutside, "fp16")
    assert any(ranges.headroom(FORMATS["fp16"]) < 0 for ranges in recorded.forward.values())
    assert found.exceptions == {}
    assert found.passes < 6, "an exception was tried"
    assert found.headroom[0] >= 0


def test_training_that_fp32_does_not_survive_is_refused() -> None:
    about = subject()
    with torch.no_grad():
        about.model.head.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="in step 1, even in fp32"):
        record(about)


def test_trials_leave_the_record_as_it_was() -> None:
    about = subject()
    recorded = record(about)
    alone = find_exceptions(about, recorded, "bf16-true")
    find_exceptions(about, recorded, "fp16")
    again = find_exceptions(about, recorded, "bf16-true")
    assert alone.damage == again.damage
    assert math.isfinite(alone.damage)


def test_update_that_is_not_a_number_is_rejected() -> None:
    """Adam's epsilon of 1e-8 is zero in fp16, where an untouched parameter's update is 0 / 0."""

    class Unused(Net):
        def __init__(self) -> None:
            super().__init__(Gate)
            self.scale = nn.Parameter(torch.ones(16))

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return super().forward(values) + 0 * self.scale.sum()

    about = replace(
        subject(), model=Unused(), optimizer=lambda model: torch.optim.Adam(model.parameters())
    )
    found = find_exceptions(about, record(about), "half")
    assert "inf or NaN" in found.rejected
    assert found.damage == math.inf


def test_scale_is_small_enough_for_every_recorded_step() -> None:
    about = subject()
    before, (values, labels), *after = about.batches[:3], about.batches[3], *about.batches[4:]
    # The step that is rehearsed, the last one, is right at the recipe's own scale.
    about = replace(about, batches=[*before, (values * 30, labels), *after])
    recorded = record(about)
    found = find_exceptions(about, recorded, "fp16")
    assert not found.rejected
    assert found.recipe.scaling is not None
    assert recorded.of_parameters.highest is not None
    assert found.recipe.scaling.init * 2.0**recorded.of_parameters.highest <= 65504
