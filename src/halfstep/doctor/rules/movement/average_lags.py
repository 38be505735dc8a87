"""An average of the weights that is evaluated is still mostly the weights of its beginning.

Its decay is planned for a longer training. With a decay of 0.9999, for example, 78 % of the average
after 2500 steps are the weights with which it began.
"""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING

from halfstep.doctor.record.averages import AverageLedger, AverageLine
from halfstep.doctor.replay.lags import Lag, Lags
from halfstep.doctor.signals.program.names import UserNames
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 16  # steps
_MOST = 0.5  # of the average
_WORSE = 0.3  # of the loss
_DIGITS = 10


def judge(evidence: Evidence) -> Finding | None:
    """Find an average that holds mostly the weights of its beginning, and loses by it."""
    lags = evidence.of(Lags)
    if lags.steps < _FEWEST:
        return None
    lines = [each for each in evidence.of(AverageLedger).lines if each.left(lags.steps) > _MOST]
    for lag in lags.found:
        if lines and lag.other - lag.loss > _WORSE * abs(lag.loss):
            return _finding(lag, lines[0], lags.steps, evidence)
    return None


def _finding(lag: Lag, line: AverageLine, steps: int, evidence: Evidence) -> Finding:
    name = evidence.of(UserNames).of(lag.model).name or "the evaluated average"
    kept, left = median(each.kept for each in line.updates), line.left(steps)
    updates = math.log(left) / math.log(kept)
    fitting = 1 - _DIGITS / max(updates, 2 * _DIGITS)
    return Finding(
        summary=f"{left:.0%} of the average of the weights, {name}, are the weights with which it "
        f"began: each update keeps {kept:.5g} of it, and there were about {updates:.0f}",
        facts=(
            (
                f"the loss of the last step is {lag.other:.3g} with its weights, and "
                f"{lag.loss:.3g} with those of the training"
            ),
            f"it is evaluated at {lag.site}",
        ),
        change=(
            *((f"  {line.site.text}",) if line.site else ()),
            f"+ # a decay for so few updates, such as {fitting:.2g}, or one that rises:",
            "+ # min(decay, (1 + updates) / (10 + updates))",
        ),
        confidence=LIKELY,
        site=line.site,
    )


RULE = Rule(
    code="AVERAGE_LAGS",
    name="an average of weights that has hardly left its beginning",
    rows=(29,),
    citations=("konpatp/diffae#16", "wandb/senpai#2899"),
    needs=frozenset({"averaging", "lags", "names"}),
    judge=judge,
    harmless=True,
)
