"""An optimizer makes steps although its parameters have no gradients."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from halfstep.doctor.record.order import optimizer_name, raised
from halfstep.doctor.record.source import difference
from halfstep.doctor.remedies import moved
from halfstep.doctor.signals.ledgers.parameters import NEVER, ZERO, Owner, ParameterLedger
from halfstep.doctor.signals.program.loads import Loads
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from halfstep.doctor.record import Event, Evidence, Fact, Loop, OptimizerFacts
    from halfstep.doctor.record.sites import Site

_FEWEST = 8  # steps
_SHARE = 0.5  # of the steps
_REFUSED = "No inf checks were recorded for this optimizer"
_ASSIGNS = re.compile(r",\s*assign\s*=\s*True")
_LATER = "+ # after the last change to the model, and before a scheduler gets the optimizer:"
_ANOTHER_MODEL = (
    "+ # create the optimizer after the last change to the model, from trainable parameters:",
    "+ optimizer = Optimizer([p for p in model.parameters() if p.requires_grad])",
)
_ANOTHER_GRAPH = (
    "+ # compute the loss from the model without detach(), item() or torch.no_grad(), and train",
    "+ # parameters that require gradients: parameter.requires_grad_()",
)
_NO_LOSS = ("+ # in a step without a loss, also skip scaler.step() and scaler.update()",)


def judge(evidence: Evidence) -> Finding | None:
    """Find an optimizer that steps without gradients.

    Either the gradients were cleared before the step, or the scaler refused the step, or the loss
    does not depend on the parameters, for example because they belong to an older model.
    """
    early = [
        each
        for each in _cleared_too_early(evidence.loop)
        if not _steps_with_gradients(evidence, each.facts["optimizer"])
    ]
    if early:
        return _cleared(evidence, early)
    refused = raised(evidence.loop, _REFUSED)
    if refused is not None:
        shape, event = refused
        missing = [
            (number, each)
            for number, each in enumerate(evidence.static.optimizers)
            if each.without_gradient
        ]
        return Finding(
            summary="scaler.step() was called for an optimizer without gradients: its parameters "
            "are frozen, do not affect the loss, or do not belong to the model",
            facts=(
                str(event.facts["error"]),
                *(f"optimizer {number}: {_missing(each)}" for number, each in missing),
                f"this first happened in step {shape.first}",
            ),
            change=(*_remedy(each for _, each in missing), *_NO_LOSS),
            site=event.site,
        )
    ledger = evidence.of(ParameterLedger)
    for owner in ledger.owners:
        if (found := _without(evidence, owner)) is not None:
            return found
    for number, optimizer in enumerate(evidence.static.optimizers):
        owned = sum(optimizer.formats.values())
        if optimizer.without_gradient == owned and _never_had(evidence.loop, number):
            return _silent(evidence, number, _missing(optimizer))
        forgotten = [name for model in evidence.static.models for name in model.forgotten]
        lapsed = _lapsed(ledger, number) if optimizer.replaced else None
        is_old = optimizer.steps and (optimizer.stale or optimizer.replaced)
        if lapsed is not None or (is_old and forgotten):
            return (
                _silent(evidence, number, _missing(optimizer), forgotten)
                if lapsed is None
                else _replaced(evidence, optimizer, lapsed)
            )
    return None


def _without(evidence: Evidence, owner: Owner) -> Finding | None:
    """Find an optimizer whose gradients end for good, or are zeros from the first step on."""
    parts = [each for each in evidence.of(ParameterLedger).parts if each.optimizer == owner.number]
    zeros = sum(each.count for each in parts if each.fate in {ZERO, NEVER})
    site = _site(evidence.loop, owner.number)
    if owner.steps >= _FEWEST and owner.last and not owner.largest and zeros == owner.parameters:
        return Finding(
            summary=f"all gradients of {counted(owner.parameters, 'parameter')} are exactly 0, so "
            "the steps change nothing: the derivative of the loss is 0",
            facts=(f"{counted(owner.steps, 'step')}; gradients were looked at in some of them",),
            change=(
                "+ # look for a softmax over a dimension of size 1, a round() or sign(), a clamp",
                "+ # beyond its bounds, ReLUs that are 0 for every input, or a factor of 0",
            ),
            confidence=LIKELY,
            site=site,
        )
    empty = owner.steps - owner.last
    if owner.last and empty >= max(_FEWEST, _SHARE * owner.steps):
        assigned = evidence.of(Loads).assigned
        if evidence.static.optimizers[owner.number].replaced and assigned is not None:
            return _assigned(evidence, owner, *assigned)
        return Finding(
            summary=f"after its first {counted(owner.last, 'step')}, the optimizer made "
            f"{counted(empty, 'step')} without any gradient: since then, its parameters require "
            "none, or the loss does not depend on them",
            facts=(f"{counted(owner.parameters, 'parameter')} in the optimizer",),
            change=("+ # make them trainable again: parameter.requires_grad_()",),
            confidence=LIKELY,
            site=site,
        )
    return None


def _assigned(evidence: Evidence, owner: Owner, line: Site, text: str) -> Finding:
    return Finding(
        summary="load_state_dict(assign=True) has replaced the parameters of the model, but the "
        "optimizer still has those of before: since then, its steps change nothing that the loss "
        "depends on",
        facts=(
            (
                f"after its first {counted(owner.last, 'step')}, the optimizer made "
                f"{counted(owner.steps - owner.last, 'step')} without any gradient"
            ),
            _missing(evidence.static.optimizers[owner.number]),
        ),
        change=difference(text, _ASSIGNS.sub("", text))
        if _ASSIGNS.search(text)
        else ("+ # without assign, or create the optimizer again after this line",),
        confidence=LIKELY,
        site=line,
    )


def _lapsed(ledger: ParameterLedger, number: int) -> Owner | None:
    owners = (each for each in ledger.owners if each.number == number and each.steps >= _FEWEST)
    return next((each for each in owners if each.lapsed), None)


def _replaced(evidence: Evidence, optimizer: OptimizerFacts, owner: Owner) -> Finding:
    """Return the finding for parameters that the loop replaces while the optimizer keeps others."""
    return Finding(
        summary=f"{owner.lapsed} of {counted(owner.parameters, 'parameter')} of the optimizer had "
        "gradients only at first, and are no longer in the model: it has got new nn.Parameters, "
        "which no optimizer updates",
        facts=(f"{counted(owner.steps, 'step')}", _missing(optimizer)),
        change=(
            "+ # under torch.no_grad(), change the values in place, as in weight.mul_(scale), and",
            "+ # do not put a new nn.Parameter into the model; or create the optimizer after that",
        ),
        confidence=LIKELY,
        site=_site(evidence.loop, owner.number),
    )


def _site(loop: Loop, number: int) -> Site | None:
    steps = (event for _, event in loop.of("step") if event.facts["optimizer"] == number)
    return next((each.site for each in steps), None)


def _steps_with_gradients(evidence: Evidence, number: Fact) -> bool:
    """Return whether an optimizer ever had nonzero gradients, possibly written by the loop."""
    return any(each.optimizer == number and each.gradient_norm for each in evidence.numbers.steps)


def _cleared_too_early(loop: Loop) -> list[Event]:
    """Return the calls that clear gradients between backward and the step of an optimizer.

    There is one for each optimizer whose gradients are cleared in this way before every step.
    """
    steps: dict[Fact, list[Event | None]] = {}
    for shape in loop.shapes:
        reached: set[str] = set()
        cleared: dict[Fact, Event] = {}
        for event in shape.events:
            number = event.facts.get("optimizer")
            if event.kind == "backward":
                reached = {*str(event.facts["reaches"]).split(",")}
                cleared = {key: each for key, each in cleared.items() if str(key) not in reached}
            elif event.kind == "zero" and str(number) in reached:
                cleared[number] = event
            elif _is_step(event):
                steps.setdefault(number, []).append(cleared.get(number))
    found = [[each for each in calls if each is not None] for calls in steps.values()]
    return [mine[0] for mine, calls in zip(found, steps.values(), strict=True) if mine == calls]


def _is_step(event: Event) -> bool:
    if event.kind == "raised":
        return _REFUSED in str(event.facts["error"])
    return event.kind in {"scaler step", "step"} and not event.facts.get("by_scaler")


def _cleared(evidence: Evidence, early: Sequence[Event]) -> Finding:
    loop, zero = evidence.loop, early[0]
    numbers = [each.facts["optimizer"] for each in early]
    optimizers = [evidence.static.optimizers[int(str(each))] for each in numbers]
    owned = sum(sum(each.formats.values()) for each in optimizers)
    kinds = " and ".join(dict.fromkeys(each.kind for each in optimizers))
    others = range(len(evidence.static.optimizers))
    is_part = any(_steps_with_gradients(evidence, each) for each in others if each not in numbers)
    return Finding(
        summary="the gradients are cleared between backward() and the step of the optimizer, so "
        + (
            f"{counted(owned, 'parameter')} of {kinds} {'does' if owned == 1 else 'do'} not train"
            if is_part
            else "the model does not train"
        ),
        facts=(f"the gradients were cleared at this place {loop.share(zero, 'optimizer')}",),
        change=_after_all_steps(loop, zero)
        or moved(zero.site, _last_step(loop, zero))
        or (
            f"- {zero.site.text}" if zero.site else "- optimizer.zero_grad()",
            "+ # before the first backward() of a step, or after the step of the optimizer:",
            f"+ {optimizer_name(loop, zero.facts['optimizer'])}.zero_grad()",
        ),
        site=zero.site,
    )


def _after_all_steps(loop: Loop, zero: Event) -> tuple[str, ...]:
    """Return a change for a loop over optimizers that clears the gradients of several of them."""
    events = _between_backwards(loop, zero)
    made = 0
    cleared: dict[int, set[Fact]] = {}
    for each in events:
        made += _is_step(each)
        if each.kind == "zero" and each.site == zero.site:
            cleared.setdefault(made, set()).add(each.facts["optimizer"])
    lines = [each.site for each in events if _is_step(each)]
    repeats = len(lines) > len(set(lines))
    if zero.site is None or not repeats or max(map(len, cleared.values()), default=0) < 2:
        return ()
    return (
        f"+ # move `{zero.site.text}` to after the loop over the optimizers:",
        "+ # all of them must make their steps before the gradients are cleared",
    )


def _last_step(loop: Loop, zero: Event) -> Site | None:
    """Return the line of the last step between a clearing and the next backward pass."""
    events = _between_backwards(loop, zero)
    after = events[events.index(zero) :] if zero in events else []
    lines = [each.site for each in after if _is_step(each)]
    return lines[-1] if lines else _step_of(loop, zero.facts["optimizer"])


def _between_backwards(loop: Loop, zero: Event) -> list[Event]:
    """Return the events around a clearing, between two backward passes of one iteration."""
    for shape in loop.shapes:
        part: list[Event] = []
        for event in shape.events:
            if event.kind != "backward":
                part.append(event)
            elif zero in part:
                break
            else:
                part = []
        if zero in part:
            return part
    return []


def _step_of(loop: Loop, number: Fact) -> Site | None:
    """Return the line of an optimizer's step, possibly by a scaler."""
    events = (event for kind in ("scaler step", "step") for _, event in loop.of(kind))
    return next((each.site for each in events if each.facts["optimizer"] == number), None)


def _remedy(optimizers: Iterable[OptimizerFacts]) -> tuple[str, ...]:
    return _ANOTHER_MODEL if any(each.foreign for each in optimizers) else _ANOTHER_GRAPH


def _never_had(loop: Loop, number: int) -> bool:
    """Return whether an optimizer stepped, but never had gradients."""
    steps = [event for _, event in loop.of("step") if event.facts["optimizer"] == number]
    return bool(steps) and all(each.facts["gradients"] == "none" for each in steps)


def _missing(optimizer: OptimizerFacts) -> str:
    owned = sum(optimizer.formats.values())
    if optimizer.replaced:
        return (
            f"the model no longer contains {optimizer.replaced} of the "
            f"{counted(owned, 'parameter')} of {optimizer.kind}"
        )
    share = f"{optimizer.without_gradient} of {counted(owned, 'parameter')}"
    text = f"{share} of {optimizer.kind} never had a gradient"
    if optimizer.foreign:
        text += f"; {optimizer.foreign} belong to no model that was called"
    return text


def _silent(evidence: Evidence, number: int, fact: str, forgotten: Sequence[str] = ()) -> Finding:
    optimizer = evidence.static.optimizers[number]
    made = optimizer.made_by.splitlines() if optimizer.foreign else []
    later = [_LATER, *[f"+ {line}" for line in made]] if made and forgotten else []
    missed = f"{', '.join(forgotten[:3])} {'gets' if len(forgotten) == 1 else 'get'} gradients"
    return Finding(
        summary=(
            f"{missed}, but no optimizer updates {'it' if len(forgotten) == 1 else 'them'}: the "
            "optimizer was created with other parameters"
            if forgotten
            else "the optimizer steps on parameters that never get a gradient: the loss "
            "depends on other parameters"
        ),
        facts=(fact,),
        change=(
            *[f"- {line}" for line in made],
            *(later or _remedy([optimizer])),
            *(_NO_LOSS if evidence.loop.of("scale") and not forgotten else ()),
        ),
        confidence=LIKELY,
        site=(optimizer.site if later else None) or _site(evidence.loop, number),
    )


RULE = Rule(
    code="NO_GRADIENTS",
    name="an optimizer that lacks gradients of the model",
    rows=(11,),
    citations=("nerfstudio-project/nerfstudio#1919", "ecmwf/WeatherGenerator#356"),
    needs=frozenset({"loads", "loop", "static", "numbers", "parameters"}),
    judge=judge,
    explains=(
        "WEIGHT_CAST_WITHOUT_GRADIENT",
        "PART_WITHOUT_GRADIENT",
        "PARAMETERS_WITHOUT_OPTIMIZER",
    ),
)
