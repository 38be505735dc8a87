"""Rules, findings, verdicts and diagnoses: the form in which doctor reports causes."""

from __future__ import annotations

import sys
from dataclasses import field
from typing import TYPE_CHECKING

from halfstep.doctor.record.sites import Site  # noqa: TC001  # pydantic reads it at run time
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfstep.doctor.record import Evidence
    from halfstep.doctor.record.trials import Variation

CERTAIN, LIKELY, POSSIBLE = "certain", "likely", "possible"
ORDER = (CERTAIN, LIKELY, POSSIBLE)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a rule that recognised its cause in the evidence.

    Attributes:
        summary: What is wrong, in one or two sentences with numbers.
        facts: The observations that support the summary, one per line.
        change: The lines to delete and to add ("- optimizer.step()", "+ scaler.step(optimizer)").
        confidence: "certain", "likely" or "possible".
        site: The line to change; None if unknown.
        module: Path of the module concerned; "" for none.
        ruled_out: Causes that were ruled out, with the reasons.
        otherwise: Other changes, which are tried in this order if the first is not sufficient.
        tried: What became of the step when it was run with the change; "" if it was not tried.
    """

    summary: str
    facts: tuple[str, ...]
    change: tuple[str, ...]
    confidence: str = CERTAIN
    site: Site | None = None
    module: str = ""
    ruled_out: tuple[str, ...] = ()
    otherwise: tuple[tuple[str, ...], ...] = ()
    tried: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """Recognises one cause.

    Attributes:
        code: A stable name of the cause for programs ("STEP_BYPASSES_SCALER").
        name: A short name of the cause for people.
        rows: Numbers of the cause's rows in the catalogue of failures (see docs/doctor.md).
        citations: Public issues that report the cause ("NVIDIA/apex#93").
        needs: The signals (fields of `Evidence`) that the rule reads; without one of them, the rule
            finds nothing.
        judge: A function that reads the evidence and returns a finding, or None.
        also: Signals that the rule reads as well, if they were observed.
        explains: Codes of causes that are consequences of this cause and are then not reported.
        symptom: Whether the rule recognises only a symptom, which several causes can have. A
            symptom is reported only if no cause of inf or NaN is found.
        harmless: Whether the cause makes neither inf nor NaN, so that it explains no symptom.
        trial: For a cause that may do no harm: a function that returns how the last steps were
            taken with the cause and how they are taken without it, or None if it does not apply. A
            certain finding then says what the cause cost, or becomes a note; if this cannot be
            measured, it is possible. A rule that also reads "trials" decides by the result itself.
    """

    code: str
    name: str
    rows: tuple[int, ...]
    citations: tuple[str, ...]
    needs: frozenset[str]
    judge: Callable[[Evidence], Finding | None]
    also: frozenset[str] = frozenset()
    explains: tuple[str, ...] = ()
    symptom: bool = False
    harmless: bool = False
    trial: Callable[[Evidence], tuple[Variation, Variation] | None] | None = None

    @property
    def topic(self) -> str:
        """The package of the rule's file, such as "overflow"."""
        return self.judge.__module__.split(".")[-2]

    @property
    def about(self) -> str:
        """The description of the cause: the docstring of the rule's file, in one line."""
        return " ".join((sys.modules[self.judge.__module__].__doc__ or self.name).split())

    def read(self, evidence: Evidence) -> Finding | None:
        """Return the finding, or None; the rule sees only the signals that it needs."""
        if not self.needs <= evidence.signals:
            return None
        return self.judge(evidence.only(self.needs | self.also))


@dataclass(frozen=True, slots=True)
class Verdict:
    """A finding, with the description of its rule.

    Attributes:
        code: Code of the rule.
        name: Name of the rule.
        rows: Rows of the rule in the catalogue of failures.
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
        consequences: Codes of findings that are not reported, because a verdict explains them.
        headroom: One line on the distance to overflow and underflow; "" if unknown.
        notes: Notes for the user, such as what could not be examined and why.
        unchecked: A part of the program that was not checked, and why; "" for none.
        advice: What to try next, if there is no verdict; "" for nothing.
        before: "in the 3 steps before the ValueError", if an exception ended the program.
    """

    verdicts: tuple[Verdict, ...] = ()
    consequences: tuple[str, ...] = ()
    headroom: str = ""
    notes: tuple[str, ...] = field(default=())
    unchecked: str = ""
    advice: str = ""
    before: str = ""

    @property
    def headline(self) -> str:
        """The name of the first cause, or a text that says that nothing was found."""
        if self.verdicts:
            return self.verdicts[0].name
        if self.unchecked:
            return f"{self.unchecked}; nothing else was found"
        return f"nothing found {self.before}".strip()
