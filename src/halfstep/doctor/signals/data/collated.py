"""Tensors of a batch whose rows are in another order than those of other tensors.

A collate function that sorts the sequences of a batch by their length, for example, has to sort
their targets, too. If it returns the order as well, the loop may restore it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST, _FIRST = 64, 64  # samples, and elements of each that are compared


def in_another_order(samples: Sequence[Any], tensors: Sequence[torch.Tensor]) -> frozenset[int]:
    """Return the tensors of a batch in whose order no other tensor has its samples.

    Args:
        samples: What a collate function was given, in the order of the data loader.
        tensors: The tensors that it has returned.

    Returns:
        Their places; none if the tensors cannot be compared with the samples.
    """
    count = len(samples)
    fields = [*zip(*map(_fields, samples), strict=False)]
    rows = {
        at: [_flat(each) for each in tensor]
        for at, tensor in enumerate(tensors)
        if tensor.dim() and len(tensor) == count and not tensor.is_complex()
    }
    places = list(range(count))
    if not 1 < count <= _MOST or any(
        len(row[0]) == 1 and sorted(each.item() for each in row) == places for row in rows.values()
    ):
        return frozenset()
    kept: list[tuple[int, int]] = []
    moved: dict[tuple[int, int], list[list[int]]] = {}
    for at, mine in rows.items():
        for number, field in enumerate(fields):
            if all(map(_holds, mine, field)):
                kept.append((at, number))
                continue
            sources = []
            for row in mine:
                sources.append([n for n in places if _holds(row, field[n])])
                if not sources[-1]:
                    break
            if all(sources) and {n for each in sources for n in each} == {*places}:
                moved[at, number] = sources
    orders = {number for _, number in kept}
    return frozenset(
        at
        for (at, number), sources in moved.items()
        if number not in orders
        and at not in {each for each, _ in kept}
        and any(_is_apart(rows[other], fields[its], sources) for other, its in kept)
    )


def _is_apart(
    rows: Sequence[torch.Tensor], field: Sequence[torch.Tensor], sources: list[list[int]]
) -> bool:
    """Return whether rows are not those of the samples from which others come."""
    return any(
        not any(_holds(row, field[number]) for number in numbers)
        for row, numbers in zip(rows, sources, strict=True)
    )


def _fields(sample: Any) -> list[torch.Tensor]:
    """Return the tensors and numbers of a sample."""
    parts = sample.values() if isinstance(sample, dict) else sample
    found = parts if isinstance(sample, dict | tuple | list) else (sample,)
    return [
        _flat(torch.as_tensor(each))
        for each in found
        if isinstance(each, torch.Tensor | int | float)
    ]


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().float().flatten()  # in which tensors hold numbers of Python


def _holds(row: torch.Tensor, value: torch.Tensor) -> bool:
    """Return whether a row consists of a value and padding, by its first elements."""
    rest = row[len(value) : len(value) + _FIRST]
    is_padded = len(rest) == 0 or bool((rest == rest[0]).all())
    return len(value) > 0 and is_padded and torch.equal(row[: len(value)][:_FIRST], value[:_FIRST])
