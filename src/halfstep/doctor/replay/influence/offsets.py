"""Edges of several graphs that are joined to one batch without an offset.

The nodes of a batch of graphs follow one another, so the edges of each graph must be moved by the
number of nodes before it. Without this, all edges lie among the nodes of the first graphs, and the
others have none. To which graph a node belongs is known where the nodes of each graph are summed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.doctor.record.answers import NoOffsets
from halfstep.doctor.replay.influence.losses import place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.doctor.replay.influence.forward import Operator
    from halfstep.doctor.replay.influence.forwards import Forwards

_READS = frozenset({"index", "index_select", "gather"})
_WRITES = frozenset(
    {
        f"{name}{end}"
        for name in ("index_add", "scatter_add", "scatter_reduce", "index_put")
        for end in ("", "_")
    }
)
_WHOLE = frozenset({torch.int32, torch.int64})
_FEWEST = 3  # graphs


def no_offsets(forwards: Forwards) -> Iterator[NoOffsets]:
    """Yield the graphs of a batch whose edges lie among the nodes of one graph.

    Args:
        forwards: The forward of the step.
    """
    reads = [(each, index) for each in forwards.base if (index := _index(each, _READS)) is not None]
    writes = [
        (each, index) for each in forwards.base if (index := _index(each, _WRITES)) is not None
    ]
    for _, owners in writes:
        nodes, sizes = len(owners), torch.bincount(owners)
        is_sorted = bool((owners.diff() >= 0).all())
        if len(sizes) < _FEWEST or not is_sorted or int(sizes.max()) * 2 > nodes:
            continue
        read = [one for one in reads if len(one[0].given[0]) == nodes != len(one[1])]
        written = [one for one in writes if len(one[0].given[0]) == nodes != len(one[1])]
        edges = [index for _, index in [*read, *written]]
        if not read or not written or max(int(each.max()) for each in edges) >= int(sizes.max()):
            continue
        most = 1 + max(int(each.max()) for each in edges)
        yield NoOffsets(len(sizes), nodes, most, len(read[0][1]), place(read[0][0]))
        return


def _index(operator: Operator, names: frozenset[str]) -> torch.Tensor | None:
    """Return the index of rows that an operator reads or writes; None if it is not one of these."""
    if operator.name not in names or not operator.given or not operator.given[0].ndim:
        return None
    found = [
        each
        for each in operator.given[1:]
        if each.dtype in {torch.int64, torch.int32} and each.ndim
    ]
    if len(found) != 1 or not found[0].numel() or not operator.given[0].is_floating_point():
        return None
    index = found[0].detach()
    rows = index if index.ndim == 1 else index.flatten(1)[:, 0]
    if index.ndim > 1 and bool((index.flatten(1) != rows[:, None]).any()):
        return None
    return rows.long() if int(rows.min()) >= 0 else None
