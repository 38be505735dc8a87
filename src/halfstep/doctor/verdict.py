"""A verdict of doctor: a cause, its evidence, the change, and the confidence."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from halfstep.doctor.record.sites import Site  # noqa: TC001  # pydantic reads it at run time

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfstep.doctor.record import Evidence

CERTAIN, LIKELY, POSSIBLE = "certain", "likely", "possible"
ORDER = (CERTAIN, LIKELY, POSSIBLE)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule finds in the evidence.

    Attributes:
        summary: What is wrong, in one or two sentences with numbers.
        facts: The observations behind the summary, one per line.
        change: The lines to write, or to delete ("- optimizer.step()", "+ scaler.step(optimizer)").
        confidence: "certain", "likely" or "possible".
        site: The line to change; None where it is not known.
        module: The module concerned; "" for none.
        ruled_out: Causes that were ruled out, with the reasons.
    """

    summary: str
    facts: tuple[str, ...]
    change: tuple[str, ...]
    confidence: str = CERTAIN
    site: Site | None = None
    module: str = ""
    ruled_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """One cause.

    Attributes:
        code: A stable name for programs ("STEP_BYPASSES_SCALER").
        name: A short name for people.
        rows: Its rows in the catalogue of causes.
        citations: Reports of the cause.
        needs: The signals that it reads; if one is missing, it finds nothing.
        judge: Returns a finding, or None.
        explains: Codes of causes that are consequences of this one and are then not reported.
        symptom: Whether several causes have this symptom: it is reported only if no cause is found.
        harmless: Whether the cause makes neither inf nor NaN, so that it explains no symptom.
    """

    code: str
    name: str
    rows: tuple[int, ...]
    citations: tuple[str, ...]
    needs: frozenset[str]
    judge: Callable[[Evidence], Finding | None]
    explains: tuple[str, ...] = ()
    symptom: bool = False
    harmless: bool = False

    @property
    def about(self) -> str:
        """Say in a sentence what happens; it is the docstring of the rule's file."""
        return " ".join((sys.modules[self.judge.__module__].__doc__ or self.name).split())

    def read(self, evidence: Evidence) -> Finding | None:
        """Judge by only the signals that the rule needs."""
        if not self.needs <= evidence.signals:
            return None
        return self.judge(evidence.only(self.needs))


@dataclass(frozen=True, slots=True)
class Verdict:
    """A finding and its rule.

    Attributes:
        code: Code of the rule.
        name: Name of the rule.
        rows: Rows of the rule.
        citations: Citations of the rule.
        finding: The finding of the rule.
    """

    code: str
    name: str
    rows: tuple[int, ...]
    citations: tuple[str, ...]
    finding: Finding


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The diagnosis of a program.

    Attributes:
        verdicts: The causes, most certain first.
        consequences: Causes that the verdicts explain, by code.
        headroom: One line on the distance to overflow and underflow; "" if unknown.
        notes: What could not be examined, and why.
        unchecked: A part of the program that was not checked, and why; "" for none.
    """

    verdicts: tuple[Verdict, ...] = ()
    consequences: tuple[str, ...] = ()
    headroom: str = ""
    notes: tuple[str, ...] = field(default=())
    unchecked: str = ""

    @property
    def headline(self) -> str:
        """The first cause, or that nothing was found."""
        if self.verdicts:
            return self.verdicts[0].name
        return f"{self.unchecked}; nothing else was found" if self.unchecked else "nothing found"
