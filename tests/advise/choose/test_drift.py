"""Where rounded updates take the weights over a hundred steps, against what rounding says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from halfstep.advise.choose.drift import drift, followed
from halfstep.advise.choose.exceptions import find_exceptions
from halfstep.advise.choose.record import record
from halfstep.advise.choose.rehearse import TRAINING, rehearse
from halfstep.advise.subject import Subject
from halfstep.optim import foreach
from halfstep.recipe import recipe

from .test_exceptions import subject

if TYPE_CHECKING:
    from halfstep.advise.choose.record import Record

ULP = 2.0**-7  # of bf16 between 1 and 2
NOISE = 0.5


@pytest.fixture(scope="module")
def weights() -> tuple[Subject, Record]:
    """Four weights of 243/128, whose gradient is always 1."""
    about = Subject(
        "weights",
        nn.Linear(1, 4, bias=False),
        lambda model, batch: model(batch).square().mean(),
        [torch.ones(2, 1)],
        lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
    )
    found = record(about)
    return about, replace(
        found,
        weights={"weight": torch.full((4, 1), 243 * ULP)},
        mean={"weight": torch.ones(4, 1)},
        spread={"weight": torch.zeros(4, 1)},
        noise_ratio=NOISE,
    )


@pytest.mark.parametrize(
    ("step", "off"),
    [
        (0.4, 1.0),  # less than half an ulp is lost, each time
        (0.75, 1 / 3),  # more is a whole one
        (1.0, 0.0),
    ],
)
def test_an_update_that_is_rounded_alike_each_time_is_off_by_as_much_in_the_end(
    weights: tuple[Subject, Record], step: float, off: float
) -> None:
    about, found = weights
    rate = replace(
        about, optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=step * ULP)
    )
    found = replace(found, optimizer_state=rate.optimizer(rate.copied()).state_dict())
    assert drift(rate, found, recipe("bf16-true")) == pytest.approx(off**2 / NOISE**2, abs=1e-9)


def test_noise_between_batches_lets_small_updates_through(
    weights: tuple[Subject, Record],
) -> None:
    about, found = weights
    rate = replace(about, optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.4 * ULP))
    found = replace(found, optimizer_state=rate.optimizer(rate.copied()).state_dict())
    noisy = replace(found, spread={"weight": torch.full((4, 1), 2.0)})
    assert drift(rate, noisy, recipe("bf16-true")) < 0.1 * drift(rate, found, recipe("bf16-true"))


def test_only_what_rounds_to_the_nearest_is_followed() -> None:
    about = subject()
    recorded = record(about)
    drifts = {
        name: followed(rehearse(about, recorded, recipe(name)), about, recorded, recipe(name)).drift
        for name in ("bf16-true", "half", "bf16-sr", "bf16-kahan", "o2", "fp16")
    }
    assert drifts["bf16-true"] > 10 * drifts["half"] > 0  # three bits fewer
    assert not any(drifts[name] for name in ("bf16-sr", "bf16-kahan", "o2", "fp16"))


def test_a_recipe_whose_weights_drift_is_rejected() -> None:
    about = subject()
    recorded = record(about)
    found = find_exceptions(about, recorded, "bf16-true")
    assert f"add up: after {TRAINING} steps" in found.rejected
    assert found.rehearsal is not None
    assert not found.rehearsal.stalled(0.5)  # one step does not tell
    assert found.rehearsal.gradient_damage < 1e-4
    assert found.damage > 1e-2
    assert not find_exceptions(about, recorded, "bf16-sr").rejected


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("name", ["bf16-sr", "bf16-kahan"])
def test_a_step_in_several_chunks_is_rehearsed_like_one_in_a_single_chunk(
    monkeypatch: pytest.MonkeyPatch, name: str, optimizer: type[torch.optim.Optimizer]
) -> None:
    about = Subject(
        "layers",
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)),
        lambda model, batch: model(batch).square().mean(),
        [torch.ones(2, 4), -torch.ones(2, 4)],
        lambda model: optimizer(model.parameters(), lr=0.01),
    )
    recorded = record(about)
    whole = rehearse(about, recorded, recipe(name))
    monkeypatch.setattr(foreach, "CHUNK_ELEMENTS", 8)
    assert not whole.raised
    assert rehearse(about, recorded, recipe(name)) == whole
