"""Code of a module does not follow its mode: a function that drops values is not told the mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.source import (
    difference,
    with_argument,
    with_called,
    with_changed_argument,
)
from halfstep.doctor.signals.program.mode_use import ALWAYS, FLAG, Ignored, ModeUse
from halfstep.doctor.signals.program.names import UserNames
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_ATTENTION = "scaled_dot_product_attention"


def judge(evidence: Evidence) -> Finding | None:
    """Find a trained model with such a module."""
    for each in evidence.of(ModeUse).found:
        model = evidence.static.models[each.model]
        if not model.optimizers or (each.how in {ALWAYS, FLAG} and not each.evaluated):
            continue
        title = evidence.of(UserNames).title(each.model, model.kind)
        return Finding(
            summary=f"{each.kind} in {title} {_what(each)}",
            facts=(f"{counted(each.count, 'module')} of this class in {title}",),
            change=_change(each),
            confidence=LIKELY,
            site=each.site,
        )
    return None


def _what(each: Ignored) -> str:
    if each.how == FLAG:
        return (
            f"has its own train(), which does not set {each.owner}.training: its forward() reads "
            "this flag, which is true in evaluation mode, too"
        )
    if each.how == ALWAYS:
        return (
            f"calls {each.name}() without regard to its mode: it drops values in evaluation mode, "
            "too"
        )
    return (
        f"does not tell {each.name}() its mode, and the default is training=False: it drops no "
        "values in training mode either"
    )


def _change(each: Ignored) -> tuple[str, ...]:
    mode = f"{each.owner}.training"
    if each.how == FLAG:
        place = (f"@ {each.site}",) if each.site else ()
        return (*place, f"+ {mode} = {each.mode}", f"  {each.site.text if each.site else ''}")
    if each.name == _ATTENTION:
        new = with_changed_argument(
            each.statement, each.name, "dropout_p", f"{{}} if {mode} else 0.0"
        )
    elif each.name[0].isupper():
        new = with_called(each.statement, each.name, f"train({mode})")
    else:
        new = with_argument(each.statement, each.name, "training", mode)
    if new is None:
        return (f"+ # give {each.name}() the mode: {mode}",)
    return difference(each.statement, new)


RULE = Rule(
    code="MODE_IGNORED",
    name="a module that ignores its mode",
    rows=(58,),
    citations=("pytorch/pytorch#124464", "rixwew/pytorch-fm#21"),
    needs=frozenset({"mode use", "names", "static"}),
    judge=judge,
    harmless=True,
)
