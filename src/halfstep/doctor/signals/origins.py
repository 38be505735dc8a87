"""The loop's calls, outside of a graph, that made a tensor which a model or a loss reads.

The tape holds no calls outside of a graph, so a replay takes their results as given. These notes
tell such results from data: a target, a weight or a normalised batch is computed by the loop.
"""

from __future__ import annotations

import re
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfstep.doctor.record import Maker
from halfstep.doctor.record.sites import calling_line, site
from halfstep.doctor.tensors.widen import HALVES
from halfstep.formats import format_name

if TYPE_CHECKING:
    import torch

    from halfstep.doctor.record.sites import Mark

TENSORS = 256
CALLS = 6
# These can make inf or NaN of finite numbers; other functions move numbers, or keep them finite.
_MAKES = re.compile(
    r"[ir]?(true_?div|div|divide|true_divide|pow|mul|matmul)|reciprocal|r?sqrt|square|xlogy|"
    r"log(2|10|1p|it)?|exp(2|m1)?|sinh|cosh|tan|a(cos|sin|tan|cosh|tanh)|erfinv|lgamma|"
    r"(std|var)(_mean)?|mean|(vector_)?norm|sum|cumsum|(cum)?prod|b?mm|einsum|remainder|fmod"
)


@dataclass(frozen=True, slots=True)
class Origin:
    """A call that made a tensor.

    Attributes:
        op: The function's name in torch; "cast" for a change to a half format.
        dtype: Format of the result.
        mark: The line that called it.
        before: The call that made one of its arguments; None if that is data or unknown.
        depth: Number of calls in this chain.
    """

    op: str
    dtype: torch.dtype
    mark: Mark | None
    before: Origin | None
    depth: int


class Origins:
    """Remembers the calls that made the latest tensors outside of a graph."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], Origin]] = {}

    def note(self, name: str, given: list[torch.Tensor], made: list[torch.Tensor]) -> None:
        """Remember a call outside of a graph.

        Args:
            name: The function's name in torch.
            given: The tensors in its arguments.
            made: The floating-point tensors in its result.
        """
        before = next((found for each in given if (found := self._of(each))), None)
        op = name.strip("_")
        halves = made[0].dtype in HALVES and all(each.dtype not in HALVES for each in given)
        if halves and any(each.is_floating_point() for each in given):
            op = "cast"
        if op == "cast" or _MAKES.fullmatch(op):
            if before is not None and before.depth == CALLS:
                before = None
            depth = before.depth + 1 if before else 1
            before = Origin(op, made[0].dtype, calling_line(), before, depth)
        if before is None:
            return
        for each in made:
            self._known.pop(id(each), None)
            self._known[id(each)] = (weakref.ref(each), before)
        while len(self._known) > TENSORS:
            del self._known[next(iter(self._known))]

    def of(self, tensor: torch.Tensor) -> tuple[Maker, ...]:
        """Return the calls that made a tensor, the latest first; none for data."""
        found, makers = self._of(tensor), list[Maker]()
        while found is not None:
            distance, form = len(makers) + 1, format_name(found.dtype)
            makers.append(Maker(found.op, form, (), distance, 0, site(found.mark)))
            found = found.before
        return tuple(makers)

    def _of(self, tensor: torch.Tensor) -> Origin | None:
        known = self._known.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None
