"""Puts the result of an attempt into the finding whose change was tried."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from halfstep.doctor.record.attempts import Attempts
from halfstep.doctor.report.changes import checked, in_words

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence
    from halfstep.doctor.report.listing import Listing
    from halfstep.doctor.verdict import Finding


def with_attempt(finding: Finding, code: str, evidence: Evidence, listing: Listing) -> Finding:
    """Return a finding with the change that was found to be sufficient, or with advice in words.

    Args:
        finding: A finding whose change has the program's names as far as they are known.
        code: Its cause.
        evidence: The evidence of the program, with the attempts.
        listing: The lines of the program.
    """
    found = checked(finding, evidence, listing)
    for attempt in evidence.of(Attempts).found:
        if attempt.code == code and attempt.first == found.change:
            if not attempt.finite:
                return in_words(finding, evidence, listing)
            return replace(found, change=attempt.change, tried=attempt.said)
    return found
