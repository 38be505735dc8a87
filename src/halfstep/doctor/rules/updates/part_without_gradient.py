"""A part of the model gets no gradients, although the loss depends on its parameters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from halfstep.doctor.signals.ledgers.parameters import ParameterLedger
from halfstep.doctor.signals.program.features import Features
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence
    from halfstep.doctor.record.sites import Site

_FEWEST = 3  # steps
_FLAT = {"round", "floor", "ceil", "trunc", "sign", "sgn"}
_BOUNDED = {"clamp", "clamp_max", "clamp_min", "hardtanh"}
_DETACH = re.compile(r"\.detach\(\)|\.data\b(?!\.)")


def judge(evidence: Evidence) -> Finding | None:
    """Find the place at which the gradients of an optimizer's parameters are lost."""
    ledger = evidence.of(ParameterLedger)
    if max((each.steps for each in ledger.owners), default=0) < _FEWEST:
        return None
    missing = ledger.without_gradient()
    for cut in evidence.precision.cuts:
        if names := [each for each in cut.parameters if each in missing]:
            return _finding(names, cut.how, cut.site, cut.module)
    for model in evidence.of(Features).models:
        names = [each for each in model.without if each in missing]
        if names and not (model.evaluating or model.trains):
            return _finding(names, "no_grad", model.site, "")
    return None


def _finding(names: list[str], how: str, site: Site | None, module: str) -> Finding:
    line = site.text if site else ""
    flat = "{}(), which has no gradient"
    if how in _FLAT:
        flat = "{}(), whose derivative is 0"
    elif how in _BOUNDED:
        flat = "{}(), which changes all values, so its derivative is 0"
    it, its, runs = ("it", "its", "it runs") if len(names) == 1 else ("them", "their", "they run")
    where = {
        "detach": f"{its} results are detached",
        "no_grad": f"{runs} without gradients, under torch.no_grad()",
    }.get(how, f"{its} results only go through {flat.format(how)}")
    if how == "detach" and _DETACH.search(line):
        change: tuple[str, ...] = (f"- {line}", f"+ {_DETACH.sub('', line)}")
    elif how == "no_grad":
        change = (f"  {line}", "+ # outside of torch.no_grad(), in training")
    else:
        change = (
            "+ # compute the loss from the results themselves: no detach(), .data, item() or numpy",
        )
    if how in _BOUNDED:
        change = (f"  {line}", "+ # with values within its bounds, from the initialisation on")
    elif how in _FLAT:
        change = (f"+ # the gradient of the identity: x + (x.{how}() - x).detach()",)
    return Finding(
        summary=f"{counted(len(names), 'parameter')} of the optimizer never "
        f"{'gets a gradient' if len(names) == 1 else 'get gradients'}, although the loss depends "
        f"on {it}: {where}",
        facts=(f"without a gradient: {', '.join(names[:3])}{', ...' * (len(names) > 3)}",),
        change=change,
        confidence=LIKELY,
        site=site,
        module=module,
    )


RULE = Rule(
    code="PART_WITHOUT_GRADIENT",
    name="a part of the model that gets no gradients",
    rows=(11,),
    citations=("rll-research/cic#5", "speechbrain/speechbrain#1396"),
    needs=frozenset({"features", "parameters", "precision"}),
    judge=judge,
    harmless=True,
)
