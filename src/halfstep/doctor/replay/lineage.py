"""The operators upstream of a tensor, recorded while a step is traced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record import HALVES, Maker
from halfstep.doctor.record.sites import Mark, site
from halfstep.formats import format_name
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

DISTANCE = 6
MAKERS = 32
_ADDITIONS = {"aten.add", "aten.sub", "aten.rsub"}
_SCALINGS = {"aten.mul", "aten.div"}  # linear with a number as argument
_CAST = "aten._to_copy"
_LINEAR = {_CAST, "aten.neg", "aten.sum", "aten.mean", "aten.clone", "aten.index"}


@dataclass(frozen=True, slots=True)
class Made:
    """A call of an operator.

    Attributes:
        op: The ATen operator.
        format: Format of its output.
        scalars: Python numbers among its arguments.
        mark: The line that called it.
        parents: The calls that made its inputs.
        rounded: Rounded values of the arguments that were numbers in tensors.
    """

    op: str
    format: str
    scalars: tuple[float, ...]
    mark: Mark | None
    parents: tuple[Made, ...]
    rounded: tuple[float, ...] = ()

    @property
    def additions(self) -> int | None:
        """1 if it adds or subtracts tensors, 0 if it is linear otherwise, None if it is not."""
        if self.op in _ADDITIONS:
            return int(len(self.parents) > 1)
        is_linear = self.op in _LINEAR or (self.op in _SCALINGS and self.scalars)
        return 0 if is_linear else None


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
            rounded: Rounded values of the arguments that were numbers in tensors.
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

    def half(self, key: int) -> Made | None:
        """Return the call that made a tensor in half precision, before a cast; None for none."""
        made = self._made.get(key)
        while made is not None and made.format not in HALVES:
            made = made.parents[0] if made.op == _CAST and made.parents else None
        return made

    def of(self, keys: Sequence[int]) -> tuple[Maker, ...]:
        """Return the operators upstream of these storages, nearest first."""
        found: list[Maker] = []
        row: list[tuple[int, Made, int | None]] = [
            (number, self._made[key], 0) for number, key in enumerate(keys) if key in self._made
        ]
        seen: set[tuple[int, int]] = set()
        for distance in range(1, DISTANCE + 1):
            following: list[tuple[int, Made, int | None]] = []
            for number, made, additions in row:
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
                        additions,
                    )
                )
                more = made.additions
                total = None if additions is None or more is None else additions + more
                following += [(number, parent, total) for parent in made.parents]
            row = following
        return tuple(found)
