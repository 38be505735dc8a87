"""The process-wide switches: claimed, counted and given back."""

from __future__ import annotations

import gc
import warnings
from typing import TYPE_CHECKING

import pytest
import torch

from halfstep.techniques.matmul import MatmulPrecision

if TYPE_CHECKING:
    from collections.abc import Iterator

PRECISIONS = ["tf32", "ieee", "tf32"]
SWITCHES = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)


def read() -> list[str]:
    return [switch.fp32_precision for switch in SWITCHES]


@pytest.fixture(autouse=True)
def _as_they_were() -> Iterator[None]:
    before = read()
    yield
    for switch, precision in zip(SWITCHES, before, strict=True):
        switch.fp32_precision = precision


def claim(precision) -> MatmulPrecision:
    technique = MatmulPrecision(precision)
    technique.prepare([], [])
    return technique


@pytest.mark.parametrize("before", [["ieee", "tf32", "tf32"], ["tf32", "ieee", "ieee"]])
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_switches_are_set_and_given_back(precision, before: list[str]) -> None:
    for switch, value in zip(SWITCHES, before, strict=True):
        switch.fp32_precision = value
    technique = claim(precision)
    assert read() == [precision] * 3
    technique.close()
    assert read() == before
    SWITCHES[0].fp32_precision = "tf32"
    technique.close()
    assert SWITCHES[0].fp32_precision == "tf32"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1)])
def test_nested_claims_give_back_in_any_order(order) -> None:
    before = read()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        claims = {place: claim(PRECISIONS[place]) for place in range(3)}
    for place in order:
        claims.pop(place).close()
        assert read() == ([PRECISIONS[max(claims)]] * 3 if claims else before)


def test_a_claim_that_is_dropped_gives_back_too() -> None:
    before = read()
    technique = claim("tf32")
    del technique
    gc.collect()
    assert read() == before


def test_a_claim_that_changes_an_open_one_warns_and_the_same_does_not() -> None:
    first = claim("tf32")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = claim("tf32")
    with pytest.warns(UserWarning, match="an engine that is still open had set tf32"):
        third = claim("ieee")
    for technique in (third, second, first):
        technique.close()


def test_a_cpu_rehearses_tf32_until_the_claim_ends() -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    inputs = torch.full((1, 1), 1 + 2.0**-11)
    technique = MatmulPrecision("tf32")
    technique.prepare([model], [])
    assert float(model(inputs)) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exact = MatmulPrecision("ieee")
        exact.prepare([model], [])
    assert float(model(inputs)) == 1 + 2.0**-11
    exact.close()
    assert float(model(inputs)) == 1
    technique.close()
    assert float(model(inputs)) == 1 + 2.0**-11
