"""Running statistics are those of the last batch: a momentum is that of another framework.

In PyTorch, the momentum of a norm is the weight of the new batch; in Keras and TensorFlow, it is
the weight of the statistics so far.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from halfstep.doctor.record.source import difference, with_changed_argument, with_positional
from halfstep.doctor.signals.values.momenta import NormMomenta, NormMomentum
from halfstep.doctor.verdict import LIKELY, POSSIBLE, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 3  # training calls
_HARMFUL = 0.15
_HARMLESS = 0.03
_POSITION = 2  # of the momentum among the arguments


def judge(evidence: Evidence) -> Finding | None:
    """Find norms that are evaluated with the statistics of nearly one batch."""
    for each in evidence.of(NormMomenta).norms:
        if each.calls >= _FEWEST and not (each.scatter is not None and each.scatter < _HARMLESS):
            return _finding(each)
    return None


def _finding(norm: NormMomentum) -> Finding:
    harms = norm.scatter is not None and norm.scatter >= _HARMFUL
    measured: tuple[str, ...] = ()
    if norm.scatter is not None:
        share = f"{norm.scatter:.0%} of the standard deviation of their values"
        measured = (f"from batch to batch, the means of channels differ by {share}",)
    return Finding(
        summary=f"with momentum={norm.momentum:g}, {norm.momentum:.1%} of the running statistics "
        f"are those of the last batch, and {norm.kind} is evaluated with them: in PyTorch, the "
        "momentum is the weight of the new batch, not of the statistics so far",
        facts=(
            *measured,
            (
                f"{counted(norm.count, 'norm')} with this momentum, {norm.calls} training calls "
                f"and {counted(norm.evaluated, 'call')} in evaluation mode"
            ),
        ),
        change=_change(norm),
        confidence=LIKELY if harms else POSSIBLE,
        site=norm.site,
    )


def _change(norm: NormMomentum) -> tuple[str, ...]:
    new, text = f"{1 - norm.momentum:.4g}", norm.statement
    number = re.escape(f"{norm.momentum:g}".removeprefix("0"))
    # A number is replaced by another one, and a variable by the difference to 1.
    literal = re.sub(rf"(?<=[=\s])0?{number}\b", new, text) if "momentum" in text else text
    if literal == text:
        changed = with_changed_argument(text, norm.kind, "momentum", "1 - {}")
        literal = changed or with_positional(text, norm.kind, _POSITION, new) or text
    if literal == text:
        return (f"+ # momentum={new} in place of {norm.momentum:g} for {norm.kind}",)
    return difference(text, literal)


RULE = Rule(
    code="NORM_MOMENTUM_REVERSED",
    name="a norm with the momentum of another framework",
    rows=(58,),
    citations=(
        "eriklindernoren/PyTorch-YOLOv3#230",
        "kazuto1011/deeplab-pytorch#79",
        "Cadene/pretrained-models.pytorch#44",
    ),
    needs=frozenset({"norm momenta"}),
    judge=judge,
    harmless=True,
)
