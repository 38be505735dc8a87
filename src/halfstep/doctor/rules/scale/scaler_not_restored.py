"""Training continues with a new gradient scaler: after a resume, or in each epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find a scaler without a loaded state that steps an optimizer with a loaded state."""
    stepped = {
        (event.facts["scaler"], event.facts["optimizer"])
        for _, event in evidence.loop.of("scaler step")
    }
    for scaler, optimizer in sorted(stepped, key=str):
        assert isinstance(scaler, int)
        assert isinstance(optimizer, int)
        mine = evidence.static.scalers[scaler]
        resumed = evidence.static.optimizers[optimizer].resumed_at
        if mine.restored or resumed == 0:
            continue
        loaded = evidence.static.optimizers[optimizer].resumed_in
        if any(
            event.facts["scaler"] == scaler and shape.first < loaded
            for shape, event in evidence.loop.of("scaler step")
        ):  # The scaler was in use before the load: the program was not restarted.
            continue
        return Finding(
            summary=f"the optimizer resumes at step {resumed}, but its gradient scaler starts "
            f"again at a loss scale of {mine.settings['init_scale']:g}: steps are skipped, or "
            "gradients underflow, until the scale has adapted",
            facts=(
                f"optimizer.load_state_dict() restored step {resumed}",
                "no state was loaded into the scaler",
                f"skipped steps in this run: {evidence.numbers.skips}",
            ),
            change=(
                '+ scaler.load_state_dict(checkpoint["scaler"])',
                '+ # and when saving: {"scaler": scaler.state_dict(), ...}',
            ),
            site=mine.site,
        )
    return _made_again(evidence)


def _made_again(evidence: Evidence) -> Finding | None:
    """Find a new scaler, without a loaded state, that replaces another one during training."""
    lives: dict[int, dict[int, tuple[int, int]]] = {}
    for shape, event in evidence.loop.of("scaler step"):
        scaler, optimizer = event.facts["scaler"], event.facts["optimizer"]
        assert isinstance(scaler, int)
        assert isinstance(optimizer, int)
        mine = lives.setdefault(optimizer, {})
        first, last = mine.get(scaler, (shape.first, shape.last))
        mine[scaler] = min(first, shape.first), max(last, shape.last)
    for optimizer, scalers in sorted(lives.items()):
        (_, (_, ended)), *later = sorted(scalers.items(), key=lambda each: each[1])
        anew = []
        for number, (first, last) in later:
            if first > ended and not evidence.static.scalers[number].restored:
                anew.append(number)
            ended = max(ended, last)
        if anew:
            made = evidence.static.scalers[anew[0]]
            # `loop` keeps only some iterations that differ.
            several = len(anew)
            if len(lives) == 1:
                several = max(several, sum(each.created_in > 0 for each in evidence.static.scalers))
            line = made.site.text if made.site else ""
            return Finding(
                summary=f"{counted(several, 'time')} during training, a new gradient scaler "
                f"takes over optimizer {optimizer} and starts at a loss scale of "
                f"{made.settings['init_scale']:g}: the scale must adapt again each time",
                facts=(
                    f"{several + 1} scalers stepped the optimizer, one after the other",
                    f"skipped steps: {evidence.numbers.skips}",
                ),
                change=(
                    f"- {line if ' = ' in line else 'scaler = torch.amp.GradScaler()'}",
                    "+ # the same line before the training loop, where the optimizer is created:",
                    "+ # all steps use this one scaler",
                ),
                site=made.site,
            )
    return None


RULE = Rule(
    code="SCALER_STATE_NOT_RESTORED",
    name="a gradient scaler that starts again during training",
    rows=(8,),
    citations=("ultralytics/ultralytics#22189", "pytorch/vision#4923"),
    needs=frozenset({"loop", "static", "numbers"}),
    judge=judge,
    explains=("SCALER_NOT_SAVED",),
    harmless=True,
)
