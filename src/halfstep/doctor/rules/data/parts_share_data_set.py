"""A setting of one part of a data set, such as its transform, changes the other parts, too."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from halfstep.doctor.signals.data.shared import SharedSetting, SharedSettings
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_THROUGH_A_PART = re.compile(r"\b(\w+)\.dataset\.\w+(\.\w+)*\s*=[^=]")


def judge(evidence: Evidence) -> Finding | None:
    """Find attributes that are set through one part of a data set and read by several."""
    for each in evidence.of(SharedSettings).settings:
        text = each.site.text if each.site is not None else ""
        if each.replaced:
            return _replaced(each, text)
        if (part := _THROUGH_A_PART.search(text)) is None:
            continue
        return Finding(
            summary=f"this line sets {each.name} of {each.kind} through {part[1]}, but "
            f"{counted(each.parts, 'part')} share this data set: from here on, the other parts "
            "have it, too",
            facts=(
                "parts from random_split() or Subset have no data set of their own",
                f"after this line, {each.parts} different parts were read",
            ),
            change=(
                "+ # give the part a data set of its own, before this line:",
                f"+ {part[1]}.dataset = copy.copy({part[1]}.dataset)",
                f"  {text}",
            ),
            confidence=LIKELY,
            site=each.site,
        )
    return None


def _replaced(setting: SharedSetting, text: str) -> Finding:
    return Finding(
        summary=f"this line sets {setting.name} of {setting.kind} for one part after the other, to "
        f"different values, but {counted(setting.parts, 'part')} share this data set: all of them "
        "have the last value",
        facts=(
            "parts from random_split() or Subset have no data set of their own",
            "no part was read before the line set the last value",
        ),
        change=(
            "+ # give each part a data set of its own, before this line:",
            "+ # part.dataset = copy.copy(part.dataset)",
            f"  {text}",
        ),
        confidence=LIKELY,
        site=setting.site,
    )


RULE = Rule(
    code="PARTS_SHARE_DATA_SET",
    name="parts of one data set that share a setting",
    rows=(60,),
    citations=("torchgeo/torchgeo#257", "gpleiss/efficient_densenet_pytorch#51"),
    needs=frozenset({"shared_settings"}),
    judge=judge,
)
