"""Finds updates that a decaying learning rate makes too small for half-precision parameters.

The recorded steps are the first of a training, at the full learning rate. A schedule makes later
updates smaller. A half-precision parameter without an fp32 copy loses updates of less than half an
ulp.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from halfstep.advise.choose.rehearse import MOST_LOST, rehearse
from halfstep.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfstep.advise.choose.record import Record
    from halfstep.advise.choose.trial import Trial
    from halfstep.advise.subject import Subject

DECAY = 100
"""Factor by which a usual schedule has lowered the learning rate near its end."""


def lost_later(
    subject: Subject,
    recorded: Record,
    trial: Trial,
    *,
    seed: int = 0,
    before: Callable[[float], None] = lambda _: None,
) -> str:
    """Return a warning if updates are lost once the learning rate has decayed, else "".

    This takes one more pass, but only for recipes that round their parameters.

    Args:
        subject: The subject; it is not modified.
        recorded: The recorded steps in fp32.
        trial: A recipe that is safe at the full learning rate.
        seed: The seed of the recipe's random numbers.
        before: Called before the pass, with the number of passes.
    """
    now = trial.rehearsal
    if now is None or trial.recipe.keeps_small_updates or not now.rounds_updates:
        return ""
    before(1)
    state = copy.deepcopy(dict(recorded.optimizer_state))
    for group in state["param_groups"]:
        group["lr"] /= DECAY
    later = rehearse(subject, replace(recorded, optimizer_state=state), trial.recipe, seed=seed)
    trial.passes += 1
    stalled = later.stalled(MOST_LOST)
    if later.breaks or not stalled:
        return ""
    parameters = counted(len(later.updates_lost), "parameter")
    return (
        "as the learning rate decays, updates become too small and are rounded away: at "
        f"1/{DECAY} of the learning rate, more than half of the update is lost in {len(stalled)} "
        f"of {parameters}; keep master weights, or end the decay earlier"
    )
