"""BatchNorm keeps its running statistics in half precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import CERTAIN, POSSIBLE, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence
    from halfstep.doctor.record.replayed import Rounded


def judge(evidence: Evidence) -> Finding | None:
    """Find running statistics in fp16 or bf16."""
    found = [
        module
        for model in evidence.static.models
        if model.training_calls
        for module in model.half_statistics
    ]
    if not found:
        return next(map(_of_the_program, evidence.precision.averaged), None)
    form = found[0].settings["running_var"]
    overflowed = [name for model in evidence.static.models for name in model.overflowed_variances]
    broken = any(model.bad_parameters for model in evidence.static.models)
    named = [repr(each.path) for each in found[:3]] + ["..."] * (len(found) > 3)
    return Finding(
        summary=f"{found[0].kind} keeps running statistics in {form}: "
        + ("a variance can overflow, and " if form == "fp16" else "")
        + "small updates of the averages are rounded away",
        facts=(
            f"{counted(len(found), 'such module')}: {', '.join(named)}",
            *([f"overflowed: {', '.join(overflowed[:3])}"] if overflowed else []),
        ),
        change=(
            "+ for module in model.modules():",
            "+     if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):",
            "+         module.float()",
        ),
        # Training uses the statistics of the batch, so NaN in parameters has another cause, and
        # steps do not show what a rounded average costs.
        confidence=CERTAIN if overflowed and not broken else POSSIBLE,
        module=found[0].path,
    )


def _of_the_program(statistics: Rounded) -> Finding:
    """Return the finding for a module of the program's own, which calls `batch_norm`."""
    return Finding(
        summary=f"a batch norm keeps running statistics in {statistics.format}: small updates of "
        "the averages are rounded away",
        facts=(
            f"{statistics.name or 'its running mean'} has magnitudes up to {statistics.largest:g}",
        ),
        change=(f"+ # make them with dtype=torch.float32; the input may stay {statistics.format}",),
        confidence=POSSIBLE,
        site=statistics.site,
        module=statistics.module,
    )


RULE = Rule(
    code="NORM_STATISTICS_IN_HALF",
    name="batch norm in half precision",
    rows=(17,),
    citations=("NVIDIA/apex#144", "fastai/fastai#507"),
    needs=frozenset({"static", "precision"}),
    judge=judge,
)
