"""Inputs, or targets of a data set, that are the same for all samples."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, ClassVar

import torch

from halfstep.doctor.record.sites import Mark, Site, site
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.doctor.signals.data.rows import Rows

_CALLS = 6
_ROWS = 4  # of a batch


@dataclass(frozen=True, slots=True)
class Constant:
    """What is the same in each row of each batch, while its counterpart differs.

    Attributes:
        what: "inputs" or "targets".
        value: The value of all elements; None if a row has several.
        rows: Number of rows that were compared.
        calls: Number of batches.
        different: Number of different rows of the counterpart.
        site: The line that calls the model.
        part: Whether the model has other inputs, too.
    """

    what: str
    value: float | None
    rows: int
    calls: int
    different: int
    site: Site | None
    part: bool = False


@dataclass(frozen=True, slots=True)
class Constants:
    """All such inputs and targets."""

    signal: ClassVar[str] = "constants"
    found: tuple[Constant, ...] = ()


def constants(calls: Sequence[Rows]) -> Constants:
    """Return the inputs and targets that are the same for all samples."""
    lines: defaultdict[tuple[bool, Mark | None, int, int], list[Rows]] = defaultdict(list)
    for each in calls:
        if each.targets is not None and each.length >= _ROWS:
            lines[each.alone, each.loss, each.model, each.optimizers].append(each)
    found = []
    for (alone, *_), mine in lines.items():
        if not alone:
            found += _zeros(mine) if len(mine) >= _CALLS else []
            continue
        if len(mine) < _CALLS or len({each.inputs[0].shape[1] for each in mine}) > 1:
            continue
        inputs = torch.cat([each.inputs[0].cpu().double() for each in mine])
        targets = _flat([each.targets for each in mine if each.targets is not None])
        if targets is None or not inputs.isfinite().all():
            continue
        same = (inputs == inputs[0]).all(), (targets == targets[0]).all()
        place, count = site(mine[-1].mark), len(mine)
        if same[0] and not same[1]:
            found.append(
                Constant("inputs", _value(inputs), len(inputs), count, _different(targets), place)
            )
        elif same[1] and all(each.is_loaded for each in mine) and not same[0]:
            found.append(
                Constant("targets", _value(targets), len(targets), count, _different(inputs), place)
            )
    return Constants(tuple(found))


def _zeros(calls: Sequence[Rows]) -> list[Constant]:
    """Return the inputs of a loader that are 0 for all samples; others may be masks of 1."""
    targets = _flat([each.targets for each in calls if each.targets is not None])
    if targets is None or (targets == targets[0]).all():
        return []
    found = []
    for place in frozenset.intersection(*[each.loaded for each in calls]):
        inputs = [each.inputs[place] for each in calls]
        if all(each.is_floating_point() for each in inputs) and not any(map(torch.any, inputs)):
            rows = sum(map(len, inputs))
            line = site(calls[-1].mark)
            different = _different(targets)
            found.append(Constant("inputs", 0.0, rows, len(calls), different, line, part=True))
    return found


def _flat(targets: list[torch.Tensor]) -> torch.Tensor | None:
    """Return the rows of all targets; None if their widths differ."""
    same = len({each.shape[1] for each in targets}) == 1
    return torch.cat([each.cpu().double() for each in targets]) if same else None


def _value(rows: torch.Tensor) -> float | None:
    low, high = (each.item() for each in torch.aminmax(rows))
    return low if low == high else None


def _different(rows: torch.Tensor) -> int:
    return len(rows.unique(dim=0))
