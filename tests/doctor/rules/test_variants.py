"""Other shapes of the same causes get the same verdict; what only looks like them gets none.

A module of `programs` may have more than its two: functions named `broken_...` and `healthy_...`.
"""

from __future__ import annotations

import contextlib

import pytest

from doctor.rules.test_rules import PROGRAMS, codes
from halfstep.doctor import Evidence, Watch, diagnose


def variants(prefix: str) -> list[tuple[str, str]]:
    return [
        (code, name)
        for code, module in sorted(PROGRAMS.items())
        for name in sorted(vars(module))
        if name.startswith(prefix)
    ]


def watched(code: str, name: str, *, errors: type[Exception] | tuple[()]) -> Evidence:
    watch = Watch()
    with contextlib.suppress(errors), watch:
        getattr(PROGRAMS[code], name)()
    assert not watch.troubles, watch.troubles
    evidence = watch.close()
    assert not [each.note for each in evidence.replays if each.note]
    return evidence


@pytest.mark.parametrize(("code", "name"), variants("broken_"))
def test_another_shape_of_the_cause_gets_its_verdict(code: str, name: str) -> None:
    assert codes(watched(code, name, errors=Exception)) == [code]


@pytest.mark.parametrize(("code", "name"), variants("healthy_"))
def test_what_only_looks_like_the_cause_gets_none(code: str, name: str) -> None:
    assert codes(watched(code, name, errors=())) == []


def test_a_divisor_of_zero_is_named() -> None:
    evidence = watched("NOT_FINITE", "broken_by_a_zero_norm", errors=())
    finding = diagnose(evidence).verdicts[0].finding
    assert any("divisor contains" in fact for fact in finding.facts)
    assert "clamp" in finding.change[0]


def test_an_update_that_makes_inf_of_finite_gradients_is_named() -> None:
    evidence = watched("NOT_FINITE", "broken_by_an_update", errors=())
    finding = diagnose(evidence).verdicts[0].finding
    assert "ByHand makes inf of finite gradients" in finding.summary
    assert 'recipe="o2"' in finding.change[-1]
