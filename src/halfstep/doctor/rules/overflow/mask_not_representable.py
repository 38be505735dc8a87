"""torch refuses a mask constant that half precision cannot represent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.constant import line_with_number_beyond
from halfstep.doctor.verdict import Finding, Rule
from halfstep.formats import FORMATS

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence
    from halfstep.doctor.record.sites import Site


def judge(evidence: Evidence) -> Finding | None:
    """Find torch's error for a number that does not fit into an fp16 tensor."""
    ending = evidence.ending
    if ending.in_optimizer:
        return None  # The number beyond the range of fp16 is a learning rate, not a mask constant.
    if "cannot be converted to type" not in ending.message or "Half" not in ending.message:
        return None
    return Finding(
        summary="a number beyond fp16's maximum of 65504, such as a mask constant of -1e9, is "
        "written into an fp16 tensor",
        facts=(f"{ending.kind}: {ending.message.splitlines()[0]}",),
        change=_change(ending.site),
        site=ending.site,
    )


def _change(site: Site | None) -> tuple[str, ...]:
    mark = (site.file, site.line, site.function) if site else None
    changed = line_with_number_beyond(mark, -FORMATS["fp16"].max, "-1e4") if mark else None
    if changed is not None:
        return f"- {changed[0]}", f"+ {changed[1]}"
    return (
        *((f"- {site.text}",) if site else ()),
        "+ # the same line with a constant that fp16 can represent, such as -1e4 or",
        "+ # torch.finfo(scores.dtype).min",
    )


RULE = Rule(
    code="MASK_NOT_REPRESENTABLE",
    name="a mask constant that fp16 cannot hold",
    rows=(22,),
    citations=(
        "NVIDIA/apex#1105",
        "facebookresearch/fairseq#3575",
    ),
    needs=frozenset({"ending"}),
    judge=judge,
)
