"""Parameters get gradients, but no optimizer contains them, so they never change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.ledgers.parameters import ParameterLedger, Unowned
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 3  # steps
_MINORITY = 0.5  # of the parameters of a model


def judge(evidence: Evidence) -> Finding | None:
    """Find parameters that the program trains, as far as it is seen, without an optimizer."""
    ledger = evidence.of(ParameterLedger)
    if max((each.steps for each in ledger.owners), default=0) < _FEWEST:
        return None
    for each in ledger.unowned:
        if evidence.static.may_copy(each.count):
            continue
        if each.why == "unfrozen":
            return _unfrozen(each)
        # A part before the trained ones may be left as it is on purpose, like loaded weights.
        if each.why == "model" and (_is_after(evidence, each) or _is_in_vain(ledger)):
            return _model(each)
        if each.why == "part" and not each.loaded and _trains(evidence, each):
            return _model(each)
    if strays := evidence.precision.strays:
        first = strays[0]
        verb, what = ("belongs", "it") if len(strays) == 1 else ("belong", "them")
        return Finding(
            summary=f"{counted(len(strays), 'parameter')} of the loss {verb} neither to a model "
            f"nor to an optimizer, so nothing updates {what}",
            facts=(f"the first one has the shape {first.shape}",),
            change=(
                "+ # register it: layers in nn.ModuleList, not in a list or a dict; parameters",
                "+ # as attributes of a module, and created once, not in forward()",
            ),
            confidence=LIKELY,
            site=first.site,
            module=first.module,
        )
    return None


def _trains(evidence: Evidence, unowned: Unowned) -> bool:
    """Return whether optimizers update most of the model, or were meant to.

    If they update a small part, such as a new head, the rest stays as it is on purpose.
    """
    optimizers = evidence.static.models[unowned.model].optimizers
    owners = [each for each in evidence.of(ParameterLedger).owners if each.number in optimizers]
    return bool(owners) and (
        unowned.count < _MINORITY * unowned.total or any(each.hollow for each in owners)
    )


def _is_in_vain(ledger: ParameterLedger) -> bool:
    """Return whether an optimizer has made all of its steps without a gradient.

    It may have been given what was frozen or replaced before the first step.
    """
    return any(each.empty == each.steps >= _FEWEST for each in ledger.owners)


def _is_after(evidence: Evidence, unowned: Unowned) -> bool:
    """Return whether a model in training mode, with its own weights, gets trained inputs."""
    return (
        unowned.training
        and not unowned.loaded
        and any(
            event.facts["model"] == unowned.model and event.facts["differentiable"]
            for _, event in evidence.loop.of("forward")
        )
    )


def _unfrozen(unowned: Unowned) -> Finding:
    return Finding(
        summary=f"the loop makes {counted(unowned.count, 'parameter')} of {unowned.kind} trainable "
        "after the optimizer was created, and no optimizer contains them: they get gradients, but "
        "never change",
        facts=(f"without an optimizer: {', '.join(unowned.names[:3])}",),
        change=(
            f"  {unowned.site.text}" if unowned.site else "  parameter.requires_grad_()",
            "+ # give them to the optimizer: optimizer.add_param_group({'params': [...]})",
        ),
        confidence=LIKELY,
        site=unowned.site,
    )


def _model(unowned: Unowned) -> Finding:
    return Finding(
        summary=f"{unowned.kind} has {counted(unowned.count, 'trainable parameter')} with "
        "gradients, and no optimizer contains them, so they never change",
        facts=(f"without an optimizer: {', '.join(unowned.names[:3])}",),
        change=(
            "+ # give them to the optimizer, too, as in [*model.parameters(), *loss.parameters()];",
            "+ # or freeze them with requires_grad_(False)",
        ),
        confidence=LIKELY,
    )


RULE = Rule(
    code="PARAMETERS_WITHOUT_OPTIMIZER",
    name="parameters that no optimizer contains",
    rows=(11,),
    citations=("CIntellifusion/GeometryForcing#13", "asyml/texar-pytorch#72"),
    needs=frozenset({"loop", "parameters", "precision", "static"}),
    judge=judge,
    harmless=True,
)
