"""The process-wide switches: claimed, counted and given back."""

from __future__ import annotations

import gc
import warnings
from functools import partial
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from halfstep.engine import Engine
from halfstep.mechanisms.matmul.technique import MatmulPrecision

if TYPE_CHECKING:
    from collections.abc import Iterator

PRECISIONS = ["tf32", "ieee", "tf32"]
SWITCHES = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
CPU = torch.backends.mkldnn.matmul


def read() -> list[str]:
    return [switch.fp32_precision for switch in SWITCHES]


def read_older() -> tuple[bool, bool, str]:
    allowed = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    return (*allowed, torch.get_float32_matmul_precision())


@pytest.fixture(autouse=True)
def _as_they_were() -> Iterator[None]:
    switches = (*SWITCHES, CPU)
    before, (allowed, _, matmul) = [s.fp32_precision for s in switches], read_older()
    yield
    torch.backends.cudnn.allow_tf32 = allowed
    torch.set_float32_matmul_precision(matmul)
    for switch, precision in zip(switches, before, strict=True):
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


def by_default() -> None:
    pass


def by_the_older_switches() -> None:
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = True


@pytest.mark.parametrize(
    "user",
    [
        by_default,
        by_the_older_switches,
        partial(torch.set_float32_matmul_precision, "highest"),
        partial(torch.set_float32_matmul_precision, "high"),
        partial(torch.set_float32_matmul_precision, "medium"),
    ],
)
@pytest.mark.parametrize("recipe", ["fp32", "tf32"])
def test_the_older_switches_can_be_read_and_are_given_back(recipe, user) -> None:
    user()
    before, older, on_cpu = read(), read_older(), CPU.fp32_precision
    layer = nn.Linear(2, 2)
    with Engine(layer, torch.optim.SGD(layer.parameters(), 0.1), recipe=recipe):
        allowed = recipe == "tf32"
        assert read_older() == (allowed, allowed, "high" if allowed else "highest")
        assert CPU.fp32_precision == "ieee"
        with torch.backends.cudnn.flags(enabled=False):  # what a double backward of LSTMs needs
            assert torch.backends.cudnn.allow_tf32
        torch.export.export(layer, (torch.ones(1, 2),))
    assert (read(), read_older(), CPU.fp32_precision) == (before, older, on_cpu)


def test_older_switches_that_disagree_are_left_alone() -> None:
    by_the_older_switches()
    SWITCHES[1].fp32_precision = "tf32"
    before = read()
    technique = claim("ieee")
    assert read() == ["ieee"] * 3
    technique.close()
    assert read() == before
    with pytest.raises(RuntimeError):
        read_older()
    torch.backends.cudnn.allow_tf32 = True


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
