"""The operators upstream of a tensor, recorded while a step is traced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfstep.doctor.record import Maker
from halfstep.doctor.record.sites import Mark, site
from halfstep.formats import format_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

DISTANCE = 6
MAKERS = 32


@dataclass(frozen=True, slots=True)
class Made:
    """A call of an operator.

    Attributes:
        op: The ATen operator.
        format: Format of its output.
        scalars: Python numbers among its arguments.
        mark: The line that called it.
        parents: The calls that made its inputs.
        rounded: Rounded values of the arguments that were numbers in half-precision tensors.
    """

    op: str
    format: str
    scalars: tuple[float, ...]
    mark: Mark | None
    parents: tuple[Made, ...]
    rounded: tuple[float, ...] = ()


class Lineage:
    """Remembers the operator that made each tensor, by storage."""

    def __init__(self) -> None:
        self._made: dict[int, Made] = {}

    def note(
        self,
        key: int,
        op: str,
        dtype: torch.dtype,
        scalars: Sequence[float],
        mark: Mark | None,
        parents: Sequence[int],
        rounded: Sequence[float] = (),
    ) -> None:
        """Record that an operator has made a tensor.

        Args:
            key: Key of the storage of the tensor, from `storage_key`.
            op: Name of the operator.
            dtype: Dtype of the tensor.
            scalars: Python numbers among the operator's arguments.
            mark: The line that called the operator.
            parents: Keys of the storages of the operator's inputs.
            rounded: Rounded values of the arguments that were numbers in half-precision tensors.
        """
        known = tuple(self._made[each] for each in dict.fromkeys(parents) if each in self._made)
        self._made[key] = Made(op, format_name(dtype), tuple(scalars), mark, known, tuple(rounded))

    def forget(self, key: int) -> None:
        """Record that no operator of the step has made the contents of a storage."""
        self._made.pop(key, None)

    def __contains__(self, key: int) -> bool:
        return key in self._made

    def op(self, key: int) -> str:
        """Return the operator that made a storage; "" if it came from outside."""
        return self._made[key].op if key in self._made else ""

    def of(self, keys: Sequence[int]) -> tuple[Maker, ...]:
        """Return the operators upstream of these storages, nearest first."""
        found: list[Maker] = []
        row = [(number, self._made[key]) for number, key in enumerate(keys) if key in self._made]
        seen: set[tuple[int, int]] = set()
        for distance in range(1, DISTANCE + 1):
            following: list[tuple[int, Made]] = []
            for number, made in row:
                if (number, id(made)) in seen or len(found) == MAKERS:
                    continue
                seen.add((number, id(made)))
                found.append(
                    Maker(
                        made.op,
                        made.format,
                        made.scalars,
                        distance,
                        number,
                        site(made.mark),
                        made.rounded,
                    )
                )
                following += [(number, parent) for parent in made.parents]
            row = following
        return tuple(found)
