"""Edges of graphs: batches without offsets, and weights that are normalised over the wrong edges.

The nodes of a batch of graphs follow one another, so the edges of each graph must be moved by the
number of nodes before it. Without this, all edges lie among the nodes of the first graphs, and the
others have none. To which graph a node belongs is known where the nodes of each graph are summed.

The weights of attention are normalised over the edges that end in one node, whose messages are
summed with them. Weights that sum to 1 over the edges that begin in one node do not do so there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.doctor.record.answers import NoOffsets, WrongEdges
from halfstep.doctor.replay.influence.losses import place
from halfstep.doctor.replay.influence.paths import ancestors

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
_SUMS = _WRITES - {"index_put", "index_put_"}
_FEWEST = 3  # graphs
_EDGES = 16
_ONE, _OFF = 1e-3, 0.2
"""How far a sum of weights is from 1; and from where on it is off."""


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


def wrong_edges(forwards: Forwards) -> Iterator[WrongEdges]:
    """Yield the weights of edges that sum to 1 over other edges than those that they sum up.

    Args:
        forwards: The forward of the step.
    """
    operators = forwards.base
    rows = [
        (each, index) for each in operators if (index := _index(each, _READS | _SUMS)) is not None
    ]
    for summed, index in rows:
        if summed.name not in _SUMS or len(index) < _EDGES:
            continue
        others = [
            each for _, each in rows if len(each) == len(index) and not _is_within(each, index)
        ]
        if not others:
            continue
        for number in sorted(ancestors(operators, summed.number), reverse=True):
            weights = _weights(operators[number], len(index))
            if weights is None or number == summed.number:
                continue
            mine = _sums(weights, index)
            if bool(((mine - 1).abs() <= _ONE).all()):
                break
            if any(bool(((_sums(weights, each) - 1).abs() <= _ONE).all()) for each in others):
                off = int(((mine - 1).abs() > _OFF).any(1).sum())
                limits = float(mine.min()), float(mine.max())
                if off * 2 > len(mine):
                    yield WrongEdges(len(index), off, len(mine), *limits, place(operators[number]))
                    return


def _is_within(groups: torch.Tensor, index: torch.Tensor) -> bool:
    """Return whether the edges of each group end in one node, as with a group for each relation."""
    return len(torch.stack([groups, index]).unique(dim=1).T) == len(groups.unique())


def _weights(operator: Operator, edges: int) -> torch.Tensor | None:
    """Return what an operator makes as weights of shape (edges, heads), if they may be such."""
    if operator.name != "div" or not any(operator.needed) or not operator.values:
        return None
    made = operator.values[0]
    if not made.ndim or len(made) != edges or not made.is_floating_point() or not made.numel():
        return None
    is_share = bool((made >= 0).all()) and bool((made <= 1 + _ONE).all())
    return made.reshape(edges, -1).double() if is_share else None


def _sums(weights: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return the sums of the rows with the same index, of shape (groups, heads)."""
    _, groups = index.unique(return_inverse=True)
    total = weights.new_zeros(int(groups.max()) + 1, weights.shape[1])
    return total.index_add_(0, groups, weights)


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
