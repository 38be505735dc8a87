"""One call at a time, made again in a recipe's formats from what was recorded of it in fp32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from halfstep import Engine
from halfstep.advise.choose.record import Record, record
from halfstep.advise.choose.single_calls import Damage, _Rerun, damages, formats_under

from .test_exceptions import Distances, Square, subject

if TYPE_CHECKING:
    from halfstep.advise.subject import Subject


def alone(about: Subject, recorded: Record, recipe: str, scale: float) -> dict[str, Damage]:
    model = about.copied()
    model.load_state_dict(recorded.weights)
    with Engine(model, about.optimizer(model), recipe=recipe) as engine:
        dtypes = formats_under(engine, about, recorded.batch)
        found = damages(engine, recorded, dtypes, scale)
    return {site.pattern: damage for site, damage in found.items()}


def test_recorded_calls_made_again_in_fp32_give_what_was_recorded() -> None:
    recorded = record(subject(Square))
    assert recorded.calls
    for call in recorded.calls:
        again = _Rerun(call, None)
        again.run()
        for found, kept in zip(again.outputs, call.outputs, strict=True):
            assert torch.equal(found, kept), call.key


def test_overflow_is_seen_at_the_call_that_makes_it_and_counted() -> None:
    about = subject(Square)
    found = alone(about, record(about), "fp16", 1.0)
    large = [call for call in record(about).calls if call.key.site.pattern == "gate.mul"]
    beyond = sum(
        int((output.abs() > 65504 + 16).sum()) for call in large for output in call.outputs
    )
    assert found["gate.mul"].nonfinite == pytest.approx(beyond, rel=0.1)
    assert found["gate.linear"].nonfinite == 0


def test_overflow_of_a_gradient_alone_is_seen_where_it_is_passed_on() -> None:
    about = subject(Distances)
    found = alone(about, record(about), "fp16", 1.0)
    assert found["gate.sqrt"].nonfinite == 0
    assert found["gate.sqrt"].nonfinite_gradients > 0


@pytest.mark.parametrize(("recipe", "unit"), [("fp16", 2.0**-11), ("bf16", 2.0**-8)])
def test_rounding_of_a_healthy_call_is_of_the_size_of_half_an_ulp(recipe: str, unit: float) -> None:
    about = subject()
    found = alone(about, record(about), recipe, 1024.0)
    assert unit / 8 < found["gate.linear"].error < 2 * unit
