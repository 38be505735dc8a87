"""The changes that the rules of learning rates suggest apply to the program, letter by letter."""

from __future__ import annotations

import inspect

import pytest

from doctor.rules.watched import PROGRAMS, watched
from halfstep.doctor import diagnose
from halfstep.doctor.record.rates import LearningRates

CODES = [
    "GROUP_RATES_OVERWRITTEN",
    "LEARNING_RATE_SQUARED",
    "LOADED_RATE_KEPT",
    "PLATEAU_OF_A_RISING_SCORE",
    "SCHEDULE_NEVER_MOVES",
    "SCHEDULE_PAST_ITS_END",
    "SCHEDULE_UNFINISHED",
]
BROKEN = [
    (code, name) for code in CODES for name in vars(PROGRAMS[code]) if name.startswith("broken")
]


@pytest.mark.parametrize(("code", "name"), BROKEN)
def test_each_deleted_line_stands_in_the_program(code: str, name: str) -> None:
    lines = {each.strip() for each in inspect.getsource(PROGRAMS[code]).splitlines()}
    finding = diagnose(watched(code, name, errors=())).verdicts[0].finding
    assert finding.site is not None
    assert finding.site.text in lines
    for line in finding.change:
        assert not line.startswith("- ") or line[2:].strip() in lines


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("LOADED_RATE_KEPT", '+ for group in optimizer.param_groups: group["lr"] = '),
        ("PLATEAU_OF_A_RISING_SCORE", '+ scheduler = ReduceLROnPlateau(optimizer, "max", '),
        ("SCHEDULE_UNFINISHED", "+ return OneCycleLR(optimizer, 0.1, "),
    ],
)
def test_the_change_is_code(code: str, said: str) -> None:
    finding = diagnose(watched(code, "broken", errors=())).verdicts[0].finding
    assert any(line.startswith(said) for line in finding.change)


def test_a_rate_that_the_program_names_is_no_default() -> None:
    evidence = watched("LOADED_RATE_KEPT", "broken_with_a_rate_that_equals_the_default", errors=())
    assert [each.is_default for each in evidence.of(LearningRates).optimizers] == [False, False]
    evidence = watched(
        "LOADED_RATE_KEPT", "healthy_optimizer_that_gets_its_rate_from_the_state", errors=()
    )
    assert [each.is_default for each in evidence.of(LearningRates).optimizers] == [False, True]


def test_the_plan_of_a_sequence_ends_with_its_last_part() -> None:
    evidence = watched("SCHEDULE_UNFINISHED", "broken_in_two_parts", errors=())
    plans = {each.kind: each.planned for each in evidence.of(LearningRates).schedules}
    assert plans == {"LinearLR": 8, "CosineAnnealingLR": 72, "SequentialLR": 80}
