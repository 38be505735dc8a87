"""The change that rules suggest for a bad step while the program runs, so that it can be tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.attempts import Suggestion
from halfstep.doctor.report.changes import checked, edits_of
from halfstep.doctor.report.listing import Listing
from halfstep.doctor.rules import rules

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def suggested(evidence: Evidence) -> Suggestion | None:
    """Return the change of the first cause that a step shows; None if it is not of certain lines.

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
        if rule.code not in explained:
            edits = edits_of(finding, evidence, listing)
            change = checked(finding, evidence, listing).change
            return Suggestion(rule.code, change, edits) if edits else None
    return None
