"""A term of the loss is computed from the model, but gives its parameters no gradient.

The term moves the value of the loss, and trains nothing: it goes through argmax, item(), NumPy or a
comparison, or is rounded, or is detached, or is computed without gradients. So does the distance of
what a frozen model gives from itself. Or it is a part of a sum that is only shown, and backward is
called on another part of it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.record.source import with_argument
from halfstep.doctor.signals.movement.adversaries import Agreements
from halfstep.doctor.signals.values.lost_terms import LostLines
from halfstep.doctor.signals.values.omitted_terms import OmittedTerms
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence
    from halfstep.doctor.record.sites import Site

_DETACH = re.compile(r"\.detach\(\)|\.data\b(?!\.)")


def judge(evidence: Evidence) -> Finding | None:
    """Find a term without gradients."""
    for line in evidence.of(LostLines).lines:
        if line.count == line.examined:
            fact = f"in {line.count} of {counted(line.examined, 'examined step')}"
            return _finding(line.how, line.site, "", fact)
    for score in evidence.of(Agreements).cut:
        fact = f"in {counted(score.steps, 'examined step')} of the generator"
        return _finding("samples", score.site, "", fact)
    omitted = evidence.of(OmittedTerms)
    if omitted.names:
        names = ", ".join(omitted.names[:3]) + ", ..." * (len(omitted.names) > 3)
        fact = (
            f"{counted(omitted.rows, 'row')} of {names} would get a gradient from the other terms, "
            f"and had none in {counted(omitted.steps, 'step')}; backward: {omitted.backward}"
        )
        return _finding("omitted", omitted.sum, "", fact)
    for term in evidence.of(Influence).terms:
        fact = f"its value in the last step: {term.value:.3g}"
        return _finding(term.how, term.at.site, term.at.module, fact)
    return None


def _finding(how: str, site: Site | None, module: str, fact: str) -> Finding:
    although = "" if how == "equal" else ", although it is computed from the model"
    return Finding(
        summary=f"a term of the loss gives no gradient{although}: {_reason(how)}; it trains "
        "nothing",
        facts=(fact,),
        change=_change(how, site.text if site else ""),
        confidence=LIKELY,
        site=site,
        module=module,
    )


def _reason(how: str) -> str:
    return {
        "number": "item() makes a Python number of it",
        "numpy": "NumPy, or Python, computes it",
        "detach": "it is detached",
        "equal": "it compares a result with itself, and no trained parameter computes this result",
        "omitted": "backward is called on a part of this sum, which lacks it",
        "samples": "it scores the samples of the generator, which are detached",
        "no_grad": "it is computed without gradients, as under torch.no_grad()",
        "create_graph": "it is a gradient that autograd.grad() returns without create_graph=True",
    }.get(how, f"it goes through {how}(), which has no gradient or one of 0")


def _change(how: str, line: str) -> tuple[str, ...]:
    if how == "number" and line.count(".item()") == 1:
        return (f"- {line}", f"+ {line.replace('.item()', '')}")
    if how in {"detach", "samples"} and _DETACH.search(line):
        return (f"- {line}", f"+ {_DETACH.sub('', line)}")
    if how == "create_graph" and "\n" not in line:
        changed = with_argument(line, "grad", "create_graph", "True")
        if changed not in {None, line}:
            return (f"- {line}", f"+ {changed}")
    return {
        "number": ("+ # add the tensor itself; item() only for what is printed",),
        "numpy": ("+ # compute this term with torch, from tensors with their graph",),
        "no_grad": (f"  {line}", "+ # outside of torch.no_grad()"),
        "equal": (f"  {line}", "+ # one of both must be the result of the model that is trained"),
        "omitted": ("+ # call backward on this sum, or return it as the loss",),
        "samples": (f"  {line}", "+ # give it the samples with their graph in this step"),
        "create_graph": ("+ # torch.autograd.grad(..., create_graph=True)",),
    }.get(
        how,
        ("+ # a differentiable term: probabilities for argmax(), sigmoid() for a comparison",),
    )


RULE = Rule(
    code="TERM_WITHOUT_GRADIENT",
    name="a term of the loss that gives no gradient",
    rows=(11,),
    citations=("yifita/deep_cage#16",),
    needs=frozenset({"adversaries", "influence", "lost_terms", "omitted_terms"}),
    judge=judge,
    harmless=True,
)
