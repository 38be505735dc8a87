"""Micro-batches with different numbers of targets count the same in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.ledgers.uneven import UnevenLedger
from halfstep.doctor.verdict import LIKELY, POSSIBLE, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 3  # steps
_SHARE = 0.5  # of them; the last batch of an epoch is often a small one
_APART = 0.1  # of the loss; a smaller effect of rows without classes is not reported


def judge(evidence: Evidence) -> Finding | None:
    """Find accumulations of means over different numbers of targets."""
    for steps in evidence.of(UnevenLedger).optimizers:
        if steps.windows < _FEWEST or steps.uneven < _SHARE * steps.windows:
            continue
        if not steps.classes and abs(steps.apart) < _APART:
            continue
        text = steps.site.text if steps.site else "(loss / micro_batches).backward()"
        return Finding(
            summary="each micro-batch of a step counts the same, although they have different "
            "numbers of targets: a target in a small micro-batch weighs more than one in a large "
            "one, other than in one batch with all of them",
            facts=(
                f"one step used micro-batches of {', '.join(map(str, steps.targets[:8]))} targets",
                f"{steps.uneven} of {counted(steps.windows, 'examined step')}",
                *_effect(steps.apart),
            ),
            change=(
                f"- {text}",
                '+ # with reduction="sum" in the loss, and the targets of the whole step counted:',
                "+ (loss / targets_of_the_step).backward()",
            ),
            # Rows without classes may be meant to count by group.
            confidence=LIKELY if steps.classes else POSSIBLE,
            site=steps.site,
        )
    return None


def _effect(apart: float) -> tuple[str, ...]:
    """Return what the loss of the steps is, if it differs from the mean over all targets."""
    if abs(apart) < _APART:
        return ()
    times = f"{1 + apart:.2g} times"
    return (f"the mean of the micro-batches' losses was {times} the mean over all targets",)


RULE = Rule(
    code="UNEVEN_MICRO_BATCHES",
    name="micro-batches of different sizes that count the same",
    rows=(58,),
    citations=("huggingface/transformers#24725", "meta-pytorch/torchtune#1875"),
    needs=frozenset({"uneven"}),
    judge=judge,
    harmless=True,
)
