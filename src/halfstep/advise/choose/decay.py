"""Finds updates that a decaying learning rate makes too small for half parameters.

The recorded steps are the first of a training, at the full learning rate. A schedule makes later
updates smaller. A half parameter without an fp32 copy loses updates of less than half an ulp.
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
"""By how much a learning rate has fallen near the end of a usual schedule."""


def lost_later(
    subject: Subject,
    recorded: Record,
    trial: Trial,
    *,
    seed: int = 0,
    before: Callable[[float], None] = lambda _: None,
) -> str:
    """Say what becomes of updates once the learning rate has fallen; "" where nothing does.

    It takes one more pass, of recipes alone that round their parameters.

    Args:
        subject: What is trained.
        recorded: Its first steps in fp32.
        trial: A recipe that it survives at the whole learning rate.
        seed: Of what the recipe draws at random.
        before: Is called before that pass, with their number.
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
