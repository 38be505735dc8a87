"""A loop registers the same hook again and again, and each of the hooks changes a gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.ledgers.piles import HookPiles
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_OFTEN = 2  # times that a line adds a hook to those of its earlier runs, after further steps
_FEWEST = 3  # hooks on one object
_SUBJECTS = {
    "register_hook": ("parameter", "gradient"),
    "register_post_accumulate_grad_hook": ("parameter", "gradient or weight"),
    "register_full_backward_hook": ("module", "gradient"),
    "register_step_pre_hook": ("optimizer", "gradient or weight"),
    "register_step_post_hook": ("optimizer", "weight"),
}


def judge(evidence: Evidence) -> Finding | None:
    """Find lines whose hooks pile up, if they change what they get."""
    for line in evidence.of(HookPiles).lines:
        if line.again < _OFTEN or line.hooks < _FEWEST or not line.changes:
            continue
        owner, what = _SUBJECTS.get(line.by, ("module", "result"))
        article = "an" if owner[0] in "aeiou" else "a"
        text = line.site.text if line.site else f"each.{line.by}(hook)"
        return Finding(
            summary=f"the loop registers a hook again on {article} {owner} that still has those of "
            f"before, so each {what} is changed once more after each time",
            facts=(
                (
                    f"{counted(line.hooks, 'hook')} of this line on one {owner}, on "
                    f"{counted(line.objects, owner)} in all"
                ),
                f"the second and later hooks changed a value {counted(line.changes, 'time')}",
            ),
            change=(
                f"- {text}",
                "+ # once, before the training; or remove the hook before it is registered again:",
                f"+ {text}",
            ),
            confidence=LIKELY,
            site=line.site,
        )
    return None


RULE = Rule(
    code="HOOKS_PILE_UP",
    name="hooks that are registered again and again",
    rows=(58,),
    citations=("docs.pytorch.org/docs/stable/generated/torch.Tensor.register_hook",),
    needs=frozenset({"piles"}),
    judge=judge,
)
