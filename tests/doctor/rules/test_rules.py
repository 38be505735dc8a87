"""Every rule: its broken program gets exactly its verdict, the mended one none."""

from __future__ import annotations

import contextlib
import operator
import re
from dataclasses import replace

import pytest
import torch

from doctor.rules.watched import PROGRAMS
from doctor.rules.watched import watched as of_program
from halfstep import recipe
from halfstep.doctor import Evidence, Watch, diagnose
from halfstep.doctor.record import from_json
from halfstep.doctor.rules import rules

CODES = sorted(PROGRAMS)
RULES = {rule.code: rule for rule in rules()}
UNPROTECTED = (
    "CLIPPED_BY_INFINITE_NORM",
    "FULLY_MASKED_ROW",
    "GRADIENTS_OVERFLOW",
    "LOG_OF_ZERO",
    "ROOT_AT_ZERO",
)
"""Programs without a scaler: their optimizer applies the bad step."""


def watched(code: str, version: str) -> Evidence:
    evidence = of_program(code, version, errors=Exception)
    assert evidence.precision.note in {"", "the last step had no backward"}
    return evidence


def codes(evidence: Evidence) -> list[str]:
    return [verdict.code for verdict in diagnose(evidence).verdicts]


def missing_in_torch(change: tuple[str, ...]) -> list[str]:
    """Return the names of torch in a change that do not exist."""

    def exists(name: str) -> bool:
        try:
            operator.attrgetter(name.removeprefix("torch."))(torch)
        except AttributeError:
            return False
        return True

    added = " ".join(line for line in change if line.startswith("+"))
    return [name for name in re.findall(r"\btorch(?:\.\w+)+", added) if not exists(name)]


def test_every_rule_has_programs_and_the_other_way_round() -> None:
    assert sorted(RULES) == CODES


@pytest.mark.parametrize("code", CODES)
def test_the_broken_program_gets_exactly_its_verdict(code: str) -> None:
    assert codes(watched(code, "broken")) == [code]


@pytest.mark.parametrize("code", CODES)
def test_the_mended_program_gets_none(code: str) -> None:
    assert codes(watched(code, "mended")) == []


@pytest.mark.parametrize("code", CODES)
def test_a_rule_is_silent_without_any_one_of_its_signals(code: str) -> None:
    rule, evidence = RULES[code], watched(code, "broken")
    assert rule.needs
    assert rule.needs <= evidence.signals
    assert rule.read(evidence) is not None
    for signal in rule.needs:
        assert rule.read(evidence.without(signal)) is None
    for signal in evidence.signals - rule.needs:
        assert rule.read(evidence.without(signal)) == rule.read(evidence)


@pytest.mark.parametrize("code", CODES)
def test_a_verdict_outlives_json(code: str) -> None:
    evidence = watched(code, "broken")
    assert codes(from_json(evidence.to_json())) == [code]


@pytest.mark.parametrize("code", CODES)
def test_a_verdict_says_what_to_change_and_where_it_happened(code: str) -> None:
    rule = RULES[code]
    finding = rule.read(watched(code, "broken"))
    assert finding.summary
    assert finding.facts
    assert finding.change
    assert missing_in_torch(finding.change) == []
    assert rule.citations
    assert rule.rows


def test_the_change_for_another_thread_has_the_format_of_the_loops_autocast() -> None:
    code = "AUTOCAST_IN_OTHER_THREAD"
    finding = RULES[code].read(watched(code, "broken"))
    assert any("dtype=torch.bfloat16" in line for line in finding.change)


@pytest.mark.parametrize(("half", "kept_by"), [("fp16", "o2"), ("bf16", "bf16-sr")])
def test_a_recipe_that_keeps_updates_has_the_format_of_the_parameters(half, kept_by) -> None:
    evidence = watched("UPDATES_ROUNDED_AWAY", "broken")
    samples = [replace(each, format=half) for each in evidence.samples]
    finding = RULES["UPDATES_ROUNDED_AWAY"].read(replace(evidence, samples=samples))
    assert f'recipe "{kept_by}"' in finding.change[-1]
    assert recipe(kept_by).params == half


@pytest.mark.parametrize(
    ("unchanged", "said", "number"),
    [(0.0, "90% of the bf16 parameters", 12), (1.0, "100% of the fp16 parameters", 1)],
)
def test_lost_updates_are_judged_for_each_half_format_by_itself(unchanged, said, number) -> None:
    evidence = watched("UPDATES_ROUNDED_AWAY", "broken")
    lost = [replace(each, format="bf16", unchanged=0.9) for each in evidence.samples[:12]]
    other = replace(lost[0], format="fp16", unchanged=unchanged)
    finding = RULES["UPDATES_ROUNDED_AWAY"].read(replace(evidence, samples=[*lost, other]))
    assert finding.summary.startswith(said)
    assert any(each.startswith(f"measured {number} time") for each in finding.facts)


@pytest.mark.parametrize("name", ["exp", "expm1", "exp2", "sinh", "cosh"])
def test_an_exponential_is_clamped_where_it_does_not_overflow(name: str) -> None:
    evidence = watched("EXP_OVERFLOW", "broken")
    births = [replace(each, op=f"aten.{name}", user_site=None) for each in evidence.births]
    finding = RULES["EXP_OVERFLOW"].read(replace(evidence, births=births))
    assert f"torch.{name}(" in finding.change[-1]
    limit = torch.tensor(float(finding.summary.rpartition(" ")[2]), dtype=torch.float64)
    compute = getattr(torch, name)
    assert compute(limit - 0.01).half().isfinite()
    assert compute(limit + 0.01).half().isinf()


@pytest.mark.usefixtures("_processor_runs_behind")
@pytest.mark.parametrize("code", UNPROTECTED)
def test_a_device_that_runs_behind_changes_no_verdict_on_an_unprotected_step(code: str) -> None:
    watch = Watch(waits=True)
    with contextlib.suppress(Exception), watch:
        PROGRAMS[code].broken()
    assert codes(watch.close()) == [code]


@pytest.mark.usefixtures("_processor_runs_behind")
@pytest.mark.parametrize("code", UNPROTECTED)
def test_no_cause_is_guessed_if_the_update_was_made_before_the_loss_was_read(code: str) -> None:
    watch = Watch()
    with contextlib.suppress(Exception), watch:
        PROGRAMS[code].broken()
    diagnosis = diagnose(watch.close())
    assert [verdict.code for verdict in diagnosis.verdicts] == ["NOT_FINITE"]
    assert any("before its loss was read" in note for note in diagnosis.notes)


def test_a_cast_before_the_first_or_after_the_last_step_is_no_fault() -> None:
    rule = RULES["WEIGHTS_ROUNDED_IN_PLACE"]
    evidence = watched("WEIGHTS_ROUNDED_IN_PLACE", "broken_by_a_checkpoint_in_half")
    (cast,) = evidence.casts
    assert rule.read(evidence).change[1].startswith("+ ")
    assert "copy.deepcopy(model).half()" in rule.read(evidence).change[1]
    for moved in (replace(cast, steps_before=0), replace(cast, steps_after=0)):
        assert rule.read(replace(evidence, casts=(moved,))) is None
