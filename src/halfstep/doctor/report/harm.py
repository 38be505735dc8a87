"""Weighs a finding by what its cause was measured to cost: it is certain, a note, or possible."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from halfstep.doctor.record.trials import Trials
from halfstep.doctor.verdict import CERTAIN, POSSIBLE

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence
    from halfstep.doctor.verdict import Finding, Rule


def weighed(finding: Finding, rule: Rule, evidence: Evidence) -> Finding | str:
    """Return a finding with what its cause cost, or a note if it cost nothing.

    A finding that is not certain, or whose rule names no trial, is returned unchanged.

    Args:
        finding: The finding.
        rule: Its rule.
        evidence: The evidence, with the trials.
    """
    if finding.confidence != CERTAIN or rule.trial is None or rule.trial(evidence) is None:
        return finding
    trial = next((each for each in evidence.of(Trials).found if each.code == rule.code), None)
    if trial is not None and trial.harms is False:
        return f"{finding.summary}; here, this did no harm: the loss is {trial.cost}"
    if trial is not None and trial.harms:
        return replace(finding, facts=(f"with it and without it, {trial.cost}", *finding.facts))
    reason = trial.note if trial is not None else ""
    unknown = "what it costs is not known" + (f": {reason}" if reason else "")
    return replace(finding, confidence=POSSIBLE, facts=(*finding.facts, unknown))
