"""Whether a sample has the same targets each time that it is used.

If a training uses the same inputs again, and their targets are then as different as those of any
two samples, inputs and targets do not belong together: they are drawn in two orders, or one of them
is shuffled alone.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from halfstep.doctor.record.passes import Overlap  # noqa: TC001  # pydantic reads it at run time
from halfstep.doctor.record.sites import Mark, Site, site
from halfstep.doctor.signals.data.overlap import mixed
from halfstep.doctor.tensors.elements import content
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfstep.doctor.signals.data.rows import Rows

_FEWEST = 32  # pairs of uses of one sample
_SAMPLES = 8  # different samples
_WIDEST = 4  # elements of a row, at least: rows of fewer may be alike by chance
_RECURRING = 0.9  # of the targets; others are computed anew in each step
_ALIKE = 0.6  # of the pairs, or of the samples: beyond, targets cannot be told apart
_SPREAD = 4.0  # standard deviations


@dataclass(frozen=True, slots=True)
class Pairing:
    """The targets of a loss, for samples that were used several times.

    Attributes:
        samples: Number of such samples.
        pairs: Number of pairs of uses of one sample.
        alike: Share of these pairs with the same targets.
        chance: This share for two samples that are drawn at random.
        site: The line of the loss.
    """

    samples: int
    pairs: int
    alike: float
    chance: float
    site: Site | None


@dataclass(frozen=True, slots=True)
class PairLedger:
    """The losses whose targets do not depend on the samples."""

    signal: ClassVar[str] = "pairs"
    lines: tuple[Pairing, ...] = ()
    overlaps: tuple[Overlap, ...] = ()


def overlaps(training: Sequence[Rows], evaluations: Sequence[Rows]) -> tuple[Overlap, ...]:
    """Return the evaluations whose batches contain samples of the training, and new ones.

    Args:
        training: The calls of the training, in their order.
        evaluations: The calls of evaluations.
    """
    known: defaultdict[int, dict[bytes, int]] = defaultdict(dict)
    learned = set()
    for call in training:
        for key in _samples(call):
            known[call.model].setdefault(key, call.step)
            learned.add((call.step, key))
    # What a step learns from is given to a teacher in it, too.
    lines: defaultdict[Mark | None, list[bool]] = defaultdict(list)
    for each in evaluations:
        lines[each.mark].append(learned.issuperset((each.step, key) for key in _samples(each)))
    teaching = {mark for mark, those in lines.items() if 2 * sum(those) > len(those)}
    firsts = _firsts(evaluations)
    # The batches of one pass over a loader count as one.
    calls: defaultdict[int, dict[Any, list[bytes]]] = defaultdict(dict)
    before: defaultdict[int, set[bytes]] = defaultdict(set)
    for number, call in enumerate(evaluations):
        mine = [] if call.mark in teaching else _samples(call)
        its = known[call.model]
        # A long batch counts if it is always the same one, and too short to have all samples.
        is_part = len(firsts.get(call.mark, ())) < 2 and call.length < _RECURRING * len(its)
        if call.is_cut and not is_part:
            continue
        # A policy acts on states before it trains on them.
        before[call.model].update(key for key in mine if its.get(key, call.step) < call.step)
        if mine and call.step:
            batch = call.mark, call.source, number if call.source < 0 else 0
            calls[call.model].setdefault(batch, []).extend(mine)
    found = []
    for model, batches in calls.items():
        is_whole = len(before[model]) > _RECURRING * len(known[model])
        shared = (
            None
            if is_whole
            else mixed(before[model], [(mark, keys) for (mark, *_), keys in batches.items()])
        )
        if shared is not None:
            found.append(replace(shared, trained=len(known[model])))
    return tuple(found)


def _firsts(evaluations: Sequence[Rows]) -> dict[Mark | None, set[tuple[bytes, ...]]]:
    """Return the first rows of the long batches of each line, of which no others are known."""
    found: defaultdict[Mark | None, set[tuple[bytes, ...]]] = defaultdict(set)
    for each in evaluations:
        if each.is_cut:
            found[each.mark].add(tuple(_samples(each)))
    return found


def _samples(call: Rows) -> list[bytes]:
    """Return the known samples of a batch; none if they cannot be told apart."""
    if not call.inputs[0].is_floating_point() or call.width < _WIDEST:
        return []
    keys = [key for key, _ in _keys(call)]
    return keys if len({*keys}) == len(keys) else []


def pair_ledger(calls: Sequence[Rows]) -> PairLedger:
    """Return the losses whose targets do not depend on the samples."""
    lines: defaultdict[tuple[Mark | None, int, int], list[Rows]] = defaultdict(list)
    for each in calls:
        if each.targets is not None and each.inputs[0].is_floating_point():
            lines[each.loss, each.model, each.optimizers].append(each)
    found = [_pairing(mark, mine) for (mark, *_), mine in lines.items()]
    return PairLedger(tuple(each for each in found if each is not None))


def _pairing(mark: Mark | None, calls: Sequence[Rows]) -> Pairing | None:
    if _are_of_places(calls):
        return None
    uses: defaultdict[bytes, list[bytes]] = defaultdict(list)
    numbers: dict[bytes, float] = {}
    for call in calls:
        for key, target, number in _rows(call):
            uses[key].append(target)
            numbers[target] = number
    counts = Counter(target for each in uses.values() for target in each)
    total = counts.total()
    chance = sum((each / total) ** 2 for each in counts.values()) if total else 1.0
    recurring = sum(each for each in counts.values() if each > 1)
    several = [each for each in uses.values() if len(each) > 1]
    pairs = sum(len(each) * (len(each) - 1) // 2 for each in several)
    same = sum(count * (count - 1) // 2 for each in several for count in Counter(each).values())
    if pairs < _FEWEST or len(several) < _SAMPLES or chance > _ALIKE:
        return None
    spread = _SPREAD * math.sqrt(chance * (1 - chance) / min(pairs, len(several) * 4))
    if recurring < _RECURRING * total or same / pairs > min(_ALIKE, chance + spread):
        return None
    if _depend([(each[0], each[1]) for each in several], numbers):
        return None
    return Pairing(len(several), pairs, same / pairs, chance, site(mark))


def _are_of_places(calls: Sequence[Rows]) -> bool:
    """Return whether targets only tell the place in the batch, as those of contrastive losses."""
    by_length: defaultdict[int, set[bytes]] = defaultdict(set)
    for call in calls:
        assert call.targets is not None
        by_length[call.length].add(content(call.targets))
    return all(len(each) == 1 for each in by_length.values())


def _rows(call: Rows) -> Iterator[tuple[bytes, bytes, float]]:
    """Yield each row once: its inputs, its targets, and the first number of these."""
    assert call.targets is not None
    targets = call.targets.cpu().double().numpy()
    rows = _keys(call)
    counts = Counter(key for key, _ in rows)
    for (key, row), target in zip(rows, targets, strict=True):
        # Two samples that look the same cannot be told apart, and a row of zeros is no sample.
        if counts[key] == 1 and (len(row) == 1 or row.min() != row.max()):
            yield key, target.tobytes(), float(target[0])


def _keys(call: Rows) -> list[tuple[bytes, Any]]:
    """Return the elements of each row of the inputs, as bytes and as numbers."""
    inputs = torch.cat([each.cpu().double() for each in call.inputs], 1).numpy()
    return [(each.tobytes(), each) for each in inputs]


def _depend(pairs: Sequence[tuple[bytes, bytes]], numbers: dict[bytes, float]) -> bool:
    """Return whether the targets of two uses of a sample depend on each other.

    Targets that are named anew, as the numbers of clusters, differ but depend on each other.
    """
    table, first, second = (
        Counter(pairs),
        Counter(a for a, _ in pairs),
        Counter(b for _, b in pairs),
    )
    count = len(pairs)
    degrees = (len(first) - 1) * (len(second) - 1)
    if len(first) ** 2 <= count:  # classes: Pearson's chi-squared test
        excess = sum(
            (table[a, b] - first[a] * second[b] / count) ** 2 / (first[a] * second[b] / count)
            for a in first
            for b in second
        )
        return excess > degrees + _SPREAD * math.sqrt(2 * degrees)
    one = torch.tensor([numbers[a] for a, _ in pairs], dtype=torch.float64)
    other = torch.tensor([numbers[b] for _, b in pairs], dtype=torch.float64)
    related = torch.corrcoef(torch.stack([one, other]))[0, 1].abs().item()
    return related > _SPREAD / math.sqrt(count)
