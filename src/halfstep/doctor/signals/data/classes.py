"""In which order the classes of the targets come: mixed in each batch, or one after the other."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, ClassVar

from halfstep.doctor.record.sites import Mark, Site, site
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.doctor.signals.data.rows import Rows

_FEWEST = 6  # steps
_DIMS = 2  # of targets, of which the second has one element
_MOST_OF_ONE = 0.7  # probability that two targets are the same; beyond, one class is most of them
_PURE = 0.5  # of the way from this probability to 1
_IN_TURN = 0.8  # of the classes that follow each other
_LONG = 3  # steps in a row with one class, on average, which no order by chance has


@dataclass(frozen=True, slots=True)
class SortedClasses:
    """A loss whose steps use one class after the other, again and again.

    Attributes:
        classes: Number of classes.
        pure: Probability that two targets of a step are the same.
        chance: Probability that any two targets are the same.
        steps: For each step its number and whether it is the first of its class.
        optimizers: Number of optimizers at that time.
        length: Number of steps in a row with one class, on average.
        same_order: Whether the classes come in the same order each time.
        model_line: The line that calls the model.
        site: The line of the loss.
    """

    classes: int
    pure: float
    chance: float
    steps: tuple[tuple[int, bool], ...]
    optimizers: int
    length: float
    same_order: bool
    model_line: Site | None
    site: Site | None


@dataclass(frozen=True, slots=True)
class ClassOrder:
    """All such losses."""

    signal: ClassVar[str] = "classes"
    lines: tuple[SortedClasses, ...] = ()


def class_orders(calls: Sequence[Rows]) -> ClassOrder:
    """Return the losses whose steps use one class after the other."""
    lines: defaultdict[tuple[Mark | None, int], list[Rows]] = defaultdict(list)
    for each in calls:
        targets = each.targets
        if targets is not None and targets.shape[1] == 1 and each.dims <= _DIMS:
            lines[each.loss, each.optimizers].append(each)
    found = [_sorted(mark, mine) for (mark, _), mine in lines.items()]
    return ClassOrder(tuple(each for each in found if each is not None))


def _sorted(mark: Mark | None, calls: Sequence[Rows]) -> SortedClasses | None:
    steps: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for each in calls:
        assert each.targets is not None
        steps[each.step].update(each.targets[:, 0].tolist())
    total = sum(steps.values(), Counter[int]())
    if any(each not in {0, 1} for each in total if isinstance(each, float)):
        return None  # numbers of a regression
    chance = sum((each / total.total()) ** 2 for each in total.values())
    several = [each for each in steps.values() if each.total() > 1]
    if len(several) < _FEWEST or chance > _MOST_OF_ONE:
        return None
    pure = sum(map(_agreement, several)) / len(several)
    if pure < chance + _PURE * (1 - chance):
        return None
    numbers = sorted(steps)
    most = [steps[number].most_common(1)[0][0] for number in numbers]
    begins = [at for at in range(len(most)) if at == 0 or most[at] != most[at - 1]]
    runs = [most[at] for at in begins]
    if isinstance(most[0], float) and len(begins) > len(most) / 2:
        return None  # An adversary gets real and made samples in turn.
    period = len({*runs})
    again = [a == b for a, b in zip(runs, runs[period:], strict=False)]
    same_order = sum(again) >= _IN_TURN * len(again)
    length = len(most) / len(runs)
    is_long = length >= _LONG and min(Counter(runs).values()) > 1
    if period < 2 or not again or not (same_order or is_long):
        return None
    first = {*begins}
    return SortedClasses(
        classes=len(total),
        pure=pure,
        chance=chance,
        steps=tuple((number, at in first) for at, number in enumerate(numbers)),
        optimizers=calls[0].optimizers,
        length=length,
        same_order=same_order,
        model_line=site(calls[0].mark),
        site=site(mark),
    )


def _agreement(counts: Counter[int]) -> float:
    """Return the probability that two different targets of a step are the same."""
    total = counts.total()
    return sum(each * (each - 1) for each in counts.values()) / (total * (total - 1))
