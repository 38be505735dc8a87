"""The samples come in the same random order in each epoch.

The order within one batch changes nothing, but which samples it leaves out does.
"""

from __future__ import annotations

import linecache
import re
from typing import TYPE_CHECKING

from halfstep.doctor.record.passes import LoaderPasses, PassLedger
from halfstep.doctor.record.sites import Site, site
from halfstep.doctor.remedies import with_epoch_of_sampler, without_seed
from halfstep.doctor.signals.data.draws import RandomDraws
from halfstep.doctor.signals.data.indexing import RowLedger
from halfstep.doctor.verdict import CERTAIN, LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 8  # samples of a pass; fewer may have the same order by chance
_NEAR = 40  # lines
_SEEDS = re.compile(r"\bmanual_seed\(|RandomState\(\w|default_rng\(\w|Random\(\w|random\.seed\(")
_PERMUTED = frozenset({"randperm", "indices", "order"})


def judge(evidence: Evidence) -> Finding | None:
    """Find loaders, and permutations of the loop, that draw one order again and again."""
    draws = evidence.of(RandomDraws)
    for line in evidence.of(PassLedger).lines:
        if (
            line.passes > 1
            and line.draws_order
            and not line.ordered
            and line.same == line.passes
            and line.draws >= _FEWEST * line.passes
            and (any(taken > 1 for taken in line.taken) or _leaves_out(line))
        ):
            return _of_loader(line, draws)
    for order in evidence.of(RowLedger).same:
        seeded = _seed_line(order.site)
        if seeded is not None:  # Without a seed, the order may be that of a sort.
            return Finding(
                summary=f"the loop makes {order.times} orders of its {order.rows} rows, and all "
                "are the same: their generator begins with the same seed each time",
                facts=(f"the seed is set in: {seeded.text}",),
                change=_seeded(seeded),
                confidence=LIKELY,
                site=order.site,
            )
    for each in draws.repetitions:
        if each.what in _PERMUTED:
            again = f"{each.function}({each.seed})" if each.function else "its generator"
            return Finding(
                summary=f"the loop draws the same order of samples {each.times} times, because "
                f"{again} is set back before each of them",
                facts=(f"drawn by: {each.site.text}" if each.site else "drawn by the loop",),
                change=without_seed(each.seeded) if each.seeded else _seeded(_seed_line(each.site)),
                confidence=CERTAIN if each.function and each.site else LIKELY,
                site=each.seeded or each.site,
            )
    return None


def _leaves_out(line: LoaderPasses) -> bool:
    """Return whether the one batch of each pass leaves out samples, which then are never seen."""
    is_whole = all(taken == line.batches == 1 for taken in line.taken)
    return is_whole and line.samples is not None and line.drawn < line.samples


def _of_loader(line: LoaderPasses, draws: RandomDraws) -> Finding:
    seeding = None if line.generator else next(iter(draws.seedings), None)
    place = line.site
    if line.has_epoch:
        why = "set_epoch() was not called with the number of the epoch"
        change = with_epoch_of_sampler(line.site)
    elif seeding is not None:
        why = f"{seeding.function}({seeding.seed}) is called before each of them"
        change, place = without_seed(seeding.site), seeding.site
    else:
        why = "its generator has the same state at the begin of each of them"
        change = _seeded(_seed_line(line.site))
    return Finding(
        summary=f"{line.passes} passes over a loader that shuffles had the same order of samples: "
        f"{why}",
        facts=(
            f"a {line.sampler} has drawn the order",
            f"{line.drawn} of {line.samples} samples were drawn"
            if line.samples
            else f"{line.drawn} samples were drawn",
        ),
        change=change,
        site=place,
    )


def _seed_line(near: Site | None) -> Site | None:
    """Return the last line before another one in its function that sets a seed."""
    for number in range(near.line, max(0, near.line - _NEAR), -1) if near else ():
        text = linecache.getline(near.file, number) if near else ""
        if near and _SEEDS.search(text):
            return site((near.file, number, near.function))
        if text.lstrip().startswith("def "):
            break
    return None


def _seeded(seeded: Site | None) -> tuple[str, ...]:
    """Return the change: the seed is set once, before the loop over the epochs."""
    words = (
        "+ # set the seed once, before the loop over the epochs; or another one in each epoch: "
        "seed + epoch"
    )
    return (words, f"  {seeded.text}") if seeded else (words,)


RULE = Rule(
    code="ORDER_REPEATS",
    name="samples that come in the same order in each epoch",
    rows=(60,),
    citations=(
        "lucidrains/DALLE-pytorch#230",
        "kan-bayashi/ParallelWaveGAN#177",
        "pytorch/pytorch#31771",
    ),
    needs=frozenset({"draws", "indexing", "passes"}),
    judge=judge,
    harmless=True,
)
