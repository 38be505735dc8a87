"""The targets of a CTC loss contain the blank, so that the model learns a label as "no label"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.sites import site
from halfstep.doctor.record.source import difference, only_line_with, statement, with_argument
from halfstep.doctor.signals.values.alignments import Alignment, Alignments
from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find CTC losses one of whose labels is the blank."""
    for line in evidence.of(Alignments).lines:
        if not line.containing:
            continue
        is_padding = line.at_the_end == line.containing
        place = "at their ends, as padding" if is_padding else "among their labels"
        return Finding(
            summary=f"the targets of a CTC loss contain its blank, class {line.blank}, {place}: "
            f"{line.containing} of {line.samples} targets do. The model cannot learn a label that "
            "is decoded as none",
            facts=(
                f"the loss has {line.classes} classes, and class {line.blank} is its blank",
                _unused(line),
            ),
            change=_for_padding(line) if is_padding else _for_labels(line),
            site=line.site,
        )
    return None


def _unused(line: Alignment) -> str:
    if not line.unused:
        return "each class is in a target, so that none is left for the blank"
    return f"no examined target contains class {', '.join(map(str, line.unused))}"


def _for_padding(line: Alignment) -> tuple[str, ...]:
    return (
        f"+ # leave padding out of target_lengths: (targets != {line.blank}).sum(1)",
        f"+ # or, if class {line.blank} is a label, give CTCLoss a blank that is none",
    )


def _for_labels(line: Alignment) -> tuple[str, ...]:
    if not line.unused:
        return (
            f"+ # give the model one more class, {line.classes}, and the loss blank={line.classes}",
        )
    blank = str(line.unused[0])
    if line.site is not None:
        mark = line.site.file, line.site.line, line.site.function
        for name, place, position in (
            ("ctc_loss", mark, 4),
            ("CTCLoss", only_line_with(r"\bCTCLoss\(", mark), 0),
        ):
            text = statement(place)
            new = with_argument(text, name, "blank", blank, position=position)
            if new is not None:
                return (f"@ {site(place)}", *difference(text, new))
    return (f"+ # give CTCLoss the argument blank={blank}, a class that no target contains",)


RULE = Rule(
    code="CTC_TARGET_CONTAINS_BLANK",
    name="CTC targets that contain the blank",
    rows=(34,),
    citations=("pytorch/pytorch#18415", "yalecyu/crnn.caffe#12"),
    needs=frozenset({"alignments"}),
    judge=judge,
    harmless=True,
)
