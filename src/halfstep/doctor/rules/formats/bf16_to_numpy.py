"""A bf16 tensor is converted to NumPy, which has no such format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find torch's error about a bf16 tensor that NumPy cannot represent."""
    ending = evidence.ending
    if "unsupported ScalarType BFloat16" not in ending.message:
        return None
    line = ending.site.text if ending.site else "array = tensor.numpy()"
    return Finding(
        summary="a bf16 tensor is converted to a NumPy array, and NumPy has no bf16",
        facts=(f"{ending.kind}: {ending.message.splitlines()[0]}",),
        change=(
            f"- {line}",
            f"+ {line.replace('.numpy(', '.float().numpy(', 1)}"
            if ".numpy(" in line
            else "+ # the same line with the tensor in fp32: tensor.float()",
        ),
        site=ending.site,
    )


RULE = Rule(
    code="BF16_TO_NUMPY",
    name="a bf16 tensor that NumPy cannot represent",
    rows=(61,),
    citations=("pytorch/pytorch#110285", "neosr-project/neosr#7"),
    needs=frozenset({"ending"}),
    judge=judge,
)
