"""The changes that rules suggest for a bad step while the program runs, to be tried."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from halfstep.doctor.record.attempts import Suggestion
from halfstep.doctor.report.changes import checked, edits_of
from halfstep.doctor.report.listing import Listing
from halfstep.doctor.rules import rules

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def suggested(evidence: Evidence) -> list[Suggestion]:
    """Return the changes for the first cause that a step shows, in the order to try them.

    Changes that are not of certain lines of the program are left out.

    Args:
        evidence: The evidence of the step; rules that need more signals are left out.
    """
    found = [
        (rule, finding)
        for rule in rules()
        if not rule.symptom and (finding := rule.read(evidence)) is not None
    ]
    explained = {code for rule, _ in found for code in rule.explains}
    listing = Listing(evidence)
    for rule, finding in found:
        if rule.code in explained:
            continue
        changes = (finding.change, *finding.otherwise)
        each_change = [replace(finding, change=each, otherwise=()) for each in changes]
        return [
            Suggestion(rule.code, checked(each, evidence, listing).change, edits)
            for each in each_change
            if (edits := edits_of(each, evidence, listing))
        ]
    return []
