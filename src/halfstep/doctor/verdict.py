"""What doctor says: a cause, its evidence, what to change, and how sure that is."""

from __future__ import annotations

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
        facts: The observations that say so, one a line.
        change: The lines to write, or to delete ("- optimizer.step()", "+ scaler.step(optimizer)").
        confidence: "certain", "likely" or "possible".
        site: The line to change; None where it is not known.
        module: The module concerned; "" for none.
        ruled_out: What else it could have been, and why it is not.
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
        citations: Threads where it happened.
        needs: The signals that it reads; without one of them it is silent.
        judge: Returns a finding, or None.
        explains: Codes of causes that are only consequences of this one, and are not reported
            beside it.
        symptom: Whether it is what any of several causes looks like: it is reported only where
            none of those is found.
    """

    code: str
    name: str
    rows: tuple[int, ...]
    citations: tuple[str, ...]
    needs: frozenset[str]
    judge: Callable[[Evidence], Finding | None]
    explains: tuple[str, ...] = ()
    symptom: bool = False

    def read(self, evidence: Evidence) -> Finding | None:
        """Judge by the signals that the rule needs, and by no other."""
        if not self.needs <= evidence.signals:
            return None
        return self.judge(evidence.only(self.needs))


@dataclass(frozen=True, slots=True)
class Verdict:
    """A finding and whose it is.

    Attributes:
        code: The rule's.
        name: The rule's.
        rows: The rule's.
        citations: The rule's.
        finding: What was found.
    """

    code: str
    name: str
    rows: tuple[int, ...]
    citations: tuple[str, ...]
    finding: Finding


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What doctor has to say of a program.

    Attributes:
        verdicts: The causes, surest first.
        consequences: Causes that the verdicts explain, by code.
        headroom: One line on how much room the formats have; "" where it is not known.
        notes: What could not be looked at, and why.
        unchecked: What was not checked though the program has it, and why; "" for nothing.
    """

    verdicts: tuple[Verdict, ...] = ()
    consequences: tuple[str, ...] = ()
    headroom: str = ""
    notes: tuple[str, ...] = field(default=())
    unchecked: str = ""

    @property
    def headline(self) -> str:
        """The first cause; or that there is none, as far as was checked."""
        if self.verdicts:
            return self.verdicts[0].name
        return "; ".join(filter(None, ("nothing found", self.unchecked)))
