"""A training is resumed from a checkpoint, and does not read an entry on which it depends.

Such an entry is a best score, or an average of the weights. Without it, the first score after the
resume counts as the best one, and the average begins again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.program.entries import Entry, UnreadEntries
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find an entry that the program saves, and loads without reading it."""
    for each in evidence.of(UnreadEntries).found:
        return Finding(
            summary=f"the checkpoint contains {each.saved} as {each.key!r}, and nothing reads this "
            f"entry when the training is resumed, {_what(each)}",
            facts=(
                f"the training has gone on for {counted(each.steps, 'step')} since the load",
                f"{each.key!r} is only written in this file",
            ),
            change=_change(each),
            confidence=LIKELY,
            site=each.site,
        )
    return None


def _what(each: Entry) -> str:
    if each.value:
        return f"so {each.saved} begins at {each.now} again, and not at {each.value}"
    return "so the training goes on with the values that it has without the load"


def _change(each: Entry) -> tuple[str, ...]:
    entry = f'{each.variable}["{each.key}"]'
    line = each.site.text if each.site else ""
    owner = each.saved.removesuffix(".state_dict()")
    restored = f"{owner} = {entry}" if owner == each.saved else f"{owner}.load_state_dict({entry})"
    return (f"  {line}", f"+ {restored}")


RULE = Rule(
    code="ENTRY_NOT_RESTORED",
    name="an entry of a checkpoint that a resume does not read",
    rows=(29,),
    citations=("facebookresearch/ConvNeXt#94", "open-mmlab/mmfewshot#30"),
    needs=frozenset({"entries"}),
    judge=judge,
    harmless=True,
)
