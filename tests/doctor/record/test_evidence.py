"""The record of evidence as JSON: in a fixed order, with inf and NaN, and read back unchanged."""

import json
import math

import pytest

from halfstep.doctor.record import from_json, recorded
from halfstep.doctor.signals.data.generators import UsedUpGenerator, UsedUpGenerators

FOUND = UsedUpGenerators((UsedUpGenerator("batches", "generator", 4, 2, 0, None),))


def test_signals_are_written_in_order_and_read_back() -> None:
    evidence = recorded(samples=(), generators=FOUND, births=(), calls=())
    text = evidence.to_json()
    assert json.loads(text)["signals"] == ["births", "calls", "generators", "samples"]
    again = from_json(text)
    assert again.signals == evidence.signals
    assert again.of(UsedUpGenerators) == FOUND


def test_numbers_that_json_lacks_are_strings() -> None:
    values = {"made up": {"values": [math.inf, -math.inf, math.nan]}}
    others = json.loads(recorded(**values).to_json())["others"]
    assert others["made up"]["values"] == ["Infinity", "-Infinity", "NaN"]


def test_a_record_without_signals_is_refused() -> None:
    with pytest.raises(ValueError, match="no signals"):
        from_json(recorded().to_json())
