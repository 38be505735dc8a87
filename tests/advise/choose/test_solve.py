"""The least predicted time among what a model survives, under limits, and verified by training."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from halfstep.advise.answer import Answer, answer, verify
from halfstep.advise.choose import rehearse
from halfstep.advise.choose import solve as solving
from halfstep.advise.choose.advice import advise
from halfstep.advise.choose.show import chosen
from halfstep.advise.choose.verify import Verification, Verifier
from halfstep.advise.predict.forecast import GAIN, Forecaster
from halfstep.advise.predict.gpus import gpu
from halfstep.advise.predict.interval import Interval, around
from halfstep.recipe import recipe

from .test_exceptions import Square, subject

if TYPE_CHECKING:
    from halfstep.advise.subject import Subject

BATCH = 1 << 20
STEPS = 24
T4 = gpu("t4")


@pytest.fixture(scope="module")
def square() -> Subject:
    return subject(Square)


@pytest.fixture(scope="module")
def found(square: Subject) -> Answer:
    return answer(square, ["fp16", "o2", "bf16", "half-bn32"], [T4, gpu("h100")], batch=BATCH)


def test_the_option_of_the_least_predicted_time_comes_first(found: Answer) -> None:
    for choice in found.choices:
        times = [option.cost.seconds.value for option in choice.options]
        warned = [option.trial.base in found.advice.later for option in choice.options]
        if not any(warned):
            assert times == sorted(times)
        assert all(choice.reference.seconds.value >= GAIN * each for each in times)
        assert {*(each.trial.base for each in choice.options), *choice.left} == {
            "fp16", "o2", "bf16", "half-bn32",
        }  # fmt: skip
        fastest = min(times, default=0.0)
        alike = [each.trial.base for each in choice.as_fast]
        assert alike == [
            each.trial.base
            for each in choice.options[1:]
            if each.cost.seconds.value <= solving.AS_FAST * fastest
        ]
        assert (f"about as fast: {', '.join(alike)}" in chosen(choice, found.advice)) == bool(alike)
    assert any(choice.as_fast for choice in found.choices)
    on_t4 = found.choices[0]
    assert on_t4.best is not None
    assert "bf16" in on_t4.left
    assert "no units for bf16" in on_t4.left["bf16"]


def test_only_a_reference_that_fits_is_about_as_fast(found: Answer) -> None:
    choice = found.choices[1]
    best = choice.options[0]
    cost = replace(best.cost, speed_up=Interval(0.9, 1.1, 1.3))
    choice = replace(choice, options=(replace(best, cost=cost),))
    assert "about as fast: tf32" in chosen(choice, found.advice)
    too_large = replace(choice.reference, limit=choice.reference.memory - 1)
    assert "about as fast" not in chosen(replace(choice, reference=too_large), found.advice)
    slower = replace(best, cost=replace(cost, speed_up=Interval(0.3, 0.4, 0.5)))
    assert "about as fast" not in chosen(replace(choice, options=(slower,)), found.advice)


def test_a_gpu_that_waits_for_the_cpu_is_told_from_which_batch_on_it_would_not(
    found: Answer,
) -> None:
    choice = replace(found.choices[1], options=())
    busy = replace(choice.reference, bound="host", busy_batch=1234, largest_batch=5000)
    said = chosen(replace(choice, reference=busy), found.advice)
    assert "up to a batch of about 1,300, the CPU takes longer" in said
    assert "try a larger --batch-size" in said
    full = replace(busy, largest_batch=1000)
    assert "up to" not in chosen(replace(choice, reference=full), found.advice)
    other = replace(busy, bound="bandwidth")
    assert "CPU" not in chosen(replace(choice, reference=other), found.advice)


def test_autocast_comes_first_where_it_is_about_as_fast(found: Answer) -> None:
    named = {each.trial.base: each for each in found.choices[1].options}
    assert {"bf16", "o2"} <= set(named)

    def at(name: str, seconds: float) -> solving.Option:
        each = named[name]
        return replace(each, cost=replace(each.cost, seconds=around(seconds, 0.1)))

    alike, slower = ([at("o2", 1.0), at("bf16", seconds)] for seconds in (1.04, 1.06))
    assert solving._simplest_first(alike, found.advice) == alike[::-1]
    assert solving._simplest_first(slower, found.advice) == slower


def test_what_needs_no_warning_comes_first_where_it_is_about_as_fast(found: Answer) -> None:
    options = list(found.choices[1].options)
    assert len(options) > 1
    seconds = options[0].cost.seconds.value
    advice = replace(found.advice, later={options[0].trial.base: "updates become too small"})

    def at(times: float) -> list[solving.Option]:
        cost = replace(options[1].cost, seconds=around(times * seconds, 0.1))
        return [options[0], replace(options[1], cost=cost)]

    alike, slower = at(1.04), at(1.06)
    assert solving._simplest_first(alike, advice) == alike[::-1]
    assert solving._simplest_first(slower, advice) == slower
    assert solving._simplest_first(alike, found.advice) == alike


@pytest.mark.parametrize(
    ("low", "has_warning", "fits", "said"),
    [
        (0.9, True, True, "its gain is not certain: predicted 1.13 [0.90, 1.40] times as fast"),
        (0.9, False, True, ""),
        (1.01, True, True, ""),
        (0.9, True, False, ""),
    ],
)
def test_an_uncertain_gain_is_not_worth_a_warning(
    found: Answer, low: float, has_warning: bool, fits: bool, said: str
) -> None:
    choice = found.choices[1]
    best = choice.options[0]
    seconds = choice.reference.seconds.value / 1.13
    cost = replace(best.cost, seconds=around(seconds, 0.1), speed_up=Interval(low, 1.13, 1.4))
    limit = choice.reference.limit if fits else choice.reference.memory - 1
    reference = replace(choice.reference, limit=limit)
    reason = solving._why_not(replace(best, cost=cost), reference, has_warning=has_warning)
    assert said in reason
    assert bool(reason) == bool(said)


def test_casts_around_an_exception_are_charged(square: Subject, found: Answer) -> None:
    assert found.advice is not None
    trial = found.advice.trial("fp16")
    assert trial.exceptions
    forecaster = Forecaster(square, batch=BATCH, largest=False)
    plain, excepted = (forecaster.predict(each, T4) for each in (recipe("fp16"), trial.recipe))
    assert excepted.seconds.value > 1.02 * plain.seconds.value
    assert excepted.memory > plain.memory


def test_wider_exceptions_are_taken_where_they_spare_casts_and_hold(
    square: Subject, found: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found.advice is not None
    trial = found.advice.trial("fp16")
    forecaster = Forecaster(square, batch=BATCH, largest=False)
    (wider,) = solving._wider(trial)
    assert list(trial.exceptions) == ["gate.mul"]
    assert list(wider.exceptions) == ["gate"]
    predict = forecaster.predict

    def cheap(recipe_, gpu_):
        cost = predict(recipe_, gpu_)
        if recipe_ == wider.recipe:
            return replace(cost, seconds=cost.seconds._replace(value=cost.seconds.value / 10))
        return cost

    monkeypatch.setattr(forecaster, "predict", cheap)
    passes = trial.passes
    (choice,) = solving.solve(square, found.advice, [T4], forecaster)
    assert choice.best is not None
    assert choice.best.trial.spec["base"] == "fp16"
    assert choice.best.trial.spec["exceptions"] == {"gate": "fp32"}
    assert choice.best.trial.rehearsal is not None
    assert choice.best.trial.rehearsal.gradient_damage < 0.1
    assert trial.passes == passes + 1  # rehearsed together, once
    monkeypatch.setattr(solving, "MOST_PASSES", found.advice.passes)  # there is none left
    (choice,) = solving.solve(square, found.advice, [T4], forecaster)
    (left,) = (option for option in choice.options if option.trial.base == "fp16")
    assert left.trial.exceptions.keys() == {"gate.mul"}
    monkeypatch.undo()
    monkeypatch.setattr(forecaster, "predict", cheap)
    monkeypatch.setattr(rehearse, "LIMIT", -1.0)  # nothing holds
    (choice,) = solving.solve(square, found.advice, [T4], forecaster)
    (left,) = (option for option in choice.options if option.trial.base == "fp16")
    assert left.trial.exceptions.keys() == {"gate.mul"}


def test_memory_rules_out_what_does_not_fit(square: Subject, found: Answer) -> None:
    assert found.advice is not None
    needs = sorted(cost.memory for cost in found.choices[0].costs)
    reference = found.choices[0].reference.memory
    limit = needs[0] + 1
    assert limit < reference
    limited = Forecaster(square, batch=BATCH, memory=limit, largest=False)
    (choice,) = solving.solve(square, found.advice, [T4], limited)
    assert not choice.reference.fits
    assert choice.reference.verdict == "does not fit"
    assert all(option.cost.memory <= limit for option in choice.options)
    assert sum("GiB" in why for why in choice.left.values()) >= 1
    tiny = Forecaster(square, batch=BATCH, memory=1.0, largest=False)
    (nothing,) = solving.solve(square, found.advice, [T4], tiny)
    assert nothing.best is None
    assert nothing.as_json()["recipe"] is None


def test_at_most_sixty_passes_before_verification(found: Answer) -> None:
    assert found.advice is not None
    assert found.advice.passes <= 60


class Fixed(Verifier):
    """Knows what trainings would say: one recipe fails."""

    bad = ""

    def verify(self, recipe):
        settled = "bad" if recipe.name.removesuffix("*") == self.bad else "good"
        return Verification(recipe.name, settled, "as told", 100)


def test_what_training_does_not_bear_out_gives_way_to_the_next_best(
    square: Subject, found: Answer
) -> None:
    first = found.choices[0]
    assert first.best is not None
    verifier = Fixed(square)
    verifier.bad = first.best.trial.base
    after = verify(found, verifier)
    assert after.verified[verifier.bad].settled == "bad"
    assert "as told" in after.choices[0].left[verifier.bad]
    following = [option.trial.base for option in first.options[1:]]
    best = after.choices[0].best
    assert (best.trial.base if best else None) == (following[0] if following else None)


def test_interrupted_verification_keeps_what_is_known(square: Subject, found: Answer) -> None:
    class Interrupted(Verifier):
        def verify(self, recipe):
            raise KeyboardInterrupt

    after = verify(found, Interrupted(square))
    assert after.interrupted
    assert after.choices == found.choices
    assert not after.verified


def test_updates_that_a_decaying_rate_makes_too_small_are_told(square: Subject) -> None:
    slow = replace(square, optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.02))
    advice = advise(slow, ["half-bn32", "o2", "fp16"])
    assert len(advice.safe) == 3
    # Autocast and master weights keep parameters in fp32.
    assert set(advice.later) == {"half-bn32"}
    assert "at 1/100 of the learning rate" in advice.later["half-bn32"]
    rows = {row["recipe"]: row for row in advice.as_json()["recipes"]}
    assert rows["half-bn32"]["later"] == advice.later["half-bn32"]
    assert 1 <= rows["fp16"]["first_loss_scale"] < 65536
