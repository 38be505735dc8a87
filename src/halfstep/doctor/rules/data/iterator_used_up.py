"""A training asks an iterator for batches that is at its end, so its later epochs have none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.passes import PassLedger
from halfstep.doctor.signals.data.generators import UsedUpGenerators
from halfstep.doctor.signals.data.reread import RereadGenerators
from halfstep.doctor.verdict import CERTAIN, LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_LATER = 2  # passes
_ARTICLES = {"generator": "a generator", "iterator": "an iterator"}


def judge(evidence: Evidence) -> Finding | None:
    """Find iterators of data loaders, and generators, that are used after their end."""
    return _of_a_loader(evidence) or _generator(evidence) or _reread(evidence)


def _reread(evidence: Evidence) -> Finding | None:
    for each in evidence.of(RereadGenerators).found:
        return Finding(
            summary=f"{each.name} is a generator, which gives its items once: it is used up, and "
            "each step runs over it again, without any items",
            facts=("it was used up in an earlier step, and it is the same one",),
            change=(
                f"+ # make it a list where it is assigned: {each.name} = list(...)",
                *((f"  {each.site.text}",) if each.site else ()),
            ),
            confidence=LIKELY,
            site=each.site,
        )
    return None


def _generator(evidence: Evidence) -> Finding | None:
    for each in evidence.of(UsedUpGenerators).found:
        if each.later < _LATER and each.planned < _LATER:
            continue
        later = counted(each.later or each.planned - 1, "later pass", "later passes")
        return Finding(
            summary=f"{each.name} is {_ARTICLES[each.kind]}, which gives its items once: it was "
            f"used up after {counted(each.steps, 'step')}, and {later} of the loop around it made "
            "none",
            facts=("it is made before this loop, and not again in it",),
            change=(
                f"+ # make it a list, {each.name} = list(...), or make it anew in each pass:",
                *((f"  {each.site.text}",) if each.site else ()),
            ),
            confidence=CERTAIN if each.later >= _LATER else LIKELY,
            site=each.site,
        )
    return None


def _of_a_loader(evidence: Evidence) -> Finding | None:
    for line in evidence.of(PassLedger).lines:
        if not line.after_end:
            continue
        return Finding(
            summary="the iterator of a data loader gave "
            f"{counted(sum(line.taken), 'batch', 'batches')} and was at its end, but was asked for "
            f"batches {counted(line.after_end, 'time')} more: the later epochs make no step",
            facts=("iter(loader) gives an iterator for one pass; the loader itself begins anew",),
            change=(
                "+ # loop over the loader, not over its iterator: for batch in loader:",
                *((f"  {line.site.text}",) if line.site else ()),
            ),
            site=line.site,
        )
    return None


RULE = Rule(
    code="ITERATOR_USED_UP",
    name="an iterator that is used up",
    rows=(60,),
    citations=("pytorch/pytorch#6179", "hushell/pmf_cvpr22#41"),
    needs=frozenset({"generators", "passes", "reread generators"}),
    judge=judge,
    harmless=True,
)
