"""Programs on the drop-in for Apex's amp: it tells what it does, and a second step is seen."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from halfstep.apex import amp
from halfstep.doctor import Watch, diagnose

LEVELS = ("O1", "O2")


@pytest.fixture(autouse=True)
def _unpatched():
    yield
    amp._amp_state.handle._deactivate()


def train(level: str, *, steps: int = 1, accumulate: int = 1, spoiled: int = -1, clip: str = ""):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    for number in range(8):
        images, labels = torch.randn(8, 12), torch.randint(0, 4, (8,))
        if number == spoiled:
            images[2, 3] = float("inf")
        loss = functional.cross_entropy(model(images).float(), labels)
        last = number % accumulate == accumulate - 1
        with amp.scale_loss(loss, optimizer, delay_unscale=not last) as scaled_loss:
            scaled_loss.backward()
            if clip == "inside":
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if clip == "behind":
            nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
        if last:
            for _ in range(steps):
                optimizer.step()
            optimizer.zero_grad()


def verdicts(level: str, **settings) -> list[str]:
    watch = Watch()
    with watch:
        train(level, **settings)
    assert not watch.troubles, watch.troubles[0]
    return [each.code for each in diagnose(watch.close()).verdicts]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("settings", [{}, {"accumulate": 2}, {"clip": "behind"}])
def test_a_healthy_program_has_nothing_found(level, settings):
    assert verdicts(level, **settings) == []


@pytest.mark.parametrize("level", LEVELS)
def test_a_second_step_on_the_same_gradients_is_found(level):
    assert verdicts(level, steps=2) == ["STEP_BYPASSES_SCALER"]


def test_a_clip_of_scaled_gradients_is_found():
    assert verdicts("O1", clip="inside") == ["GRADIENTS_CHANGED_WHILE_SCALED"]


def test_a_step_that_amp_skips_is_counted_as_skipped():
    watch = Watch()
    with watch:
        train("O1", spoiled=3)
    skipped = [
        shape for shape, event in watch.close().loop.of("scaler step") if event.facts["skipped"]
    ]
    assert sum(shape.count for shape in skipped) == 1
