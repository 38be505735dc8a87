"""Remembers the calls outside the autograd graph that made the inputs of models and losses.

The tape does not contain these calls, so a replay takes their results as given. This module shows
which of these tensors are data, and which ones the loop computed: for example a target, a weight or
a normalised batch.
"""

from __future__ import annotations

import re
import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from halfstep.doctor.record import Maker
from halfstep.doctor.record.sites import calling_line, site
from halfstep.doctor.tensors.summary import is_finite
from halfstep.doctor.tensors.widen import HALVES
from halfstep.formats import format_name

if TYPE_CHECKING:
    import torch

    from halfstep.doctor.record.sites import Mark

    Root = tuple[weakref.ref[torch.Tensor], int]

TENSORS = 256
CALLS = 6
ROOTS = 32
BYTES = 2**26
_MAKES = re.compile(
    r"[ir]?(true_?div|div|divide|true_divide|pow|mul|matmul)|reciprocal|r?sqrt|square|xlogy|"
    r"log(2|10|1p|it)?|exp(2|m1)?|sinh|cosh|tan|a(cos|sin|tan|cosh|tanh)|erfinv|lgamma|"
    r"(std|var)(_mean)?|mean|(vector_)?norm|sum|cumsum|(cum)?prod|b?mm|einsum|remainder|fmod"
)


class Call(NamedTuple):
    """A call that made a tensor.

    Attributes:
        op: The function's name in torch; "cast" for a cast to half precision.
        dtype: Format of the result.
        mark: The source line of the call.
    """

    op: str
    dtype: torch.dtype
    mark: Mark | None


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """The calls that made a tensor.

    Attributes:
        calls: The last call, and the calls that made its arguments, latest first.
        roots: The arguments of these calls that no recorded call made, and their versions.
    """

    calls: tuple[Call, ...]
    roots: tuple[Root, ...]


class Origins:
    """Remembers the calls that made the latest tensors outside the autograd graph.

    The latest roots are kept alive, so that `of` can check whether they were finite: at most
    `ROOTS` tensors, and at most `BYTES` bytes in total.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], Origin]] = {}
        self._held: deque[torch.Tensor] = deque(maxlen=ROOTS)

    def note(self, name: str, given: list[torch.Tensor], made: list[torch.Tensor]) -> None:
        """Remember a call outside the autograd graph.

        Args:
            name: The function's name in torch.
            given: The tensors in its arguments.
            made: The floating-point tensors in its result.
        """
        op, dtype = name.strip("_"), made[0].dtype
        origins: list[Origin] = []
        roots: list[Root] = []
        makes, is_cast = _MAKES.fullmatch(op) is not None, dtype in HALVES
        for each in given:
            if not each.is_floating_point() or each.is_sparse:
                continue
            is_cast &= each.dtype not in HALVES
            found = self._of(each)
            if found is None:
                if makes or is_cast:
                    roots.append(self._hold(each))
                continue
            self._known[id(each)] = self._known.pop(id(each))  # It is forgotten last now.
            if found not in origins:
                origins.append(found)
        if (makes or is_cast) and (origins or roots):
            call = Call("cast" if is_cast else op, dtype, calling_line())
            origins.insert(0, Origin((call,), tuple(roots)))
        if not origins:
            return
        origin = origins[0] if len(origins) == 1 else _together(origins)
        for each in made:
            self._known.pop(id(each), None)
            self._known[id(each)] = (weakref.ref(each), origin)
        while len(self._known) > TENSORS:
            del self._known[next(iter(self._known))]

    def _hold(self, root: torch.Tensor) -> Root:
        if not any(each is root for each in self._held):
            self._held.append(root)
            while len(self._held) > 1 and sum(each.nbytes for each in self._held) > BYTES:
                self._held.popleft()
        return weakref.ref(root), _version(root)

    def of(self, tensor: torch.Tensor) -> tuple[Maker, ...]:
        """Return the calls that made inf or NaN in a tensor from finite tensors, latest first.

        Returns:
            The calls. Empty for data, and if a root of the calls was not finite, was changed since
            or no longer exists.
        """
        found = self._of(tensor)
        if found is None or not all(_was_finite(*each) for each in found.roots):
            return ()
        return tuple(
            Maker(each.op, format_name(each.dtype), (), number, 0, site(each.mark))
            for number, each in enumerate(found.calls, 1)
        )

    def _of(self, tensor: torch.Tensor) -> Origin | None:
        known = self._known.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None


def _together(origins: list[Origin]) -> Origin:
    calls = dict.fromkeys(call for each in origins for call in each.calls)
    roots = dict.fromkeys(root for each in origins for root in each.roots)
    return Origin(tuple(calls)[:CALLS], tuple(roots)[:CALLS])


def _was_finite(root: weakref.ref[torch.Tensor], version: int) -> bool:
    tensor = root()
    return tensor is not None and _version(tensor) == version and is_finite(tensor)


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
