"""Gradients in fp16 that the loop divides by a large number while they are still in fp16.

The elements that a division turns into 0 are counted on their device, in a few calls of each line,
and are read at the program's end.
"""

from __future__ import annotations

from dataclasses import field
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.signals.values.samples import is_sampled
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

_LINES = 16
_SMALLEST = 2.0**-24  # of fp16
_LARGEST = 2.0**24  # a loss scale
_SPREAD = 4.0  # numbers near the smallest are rounded
_LARGE = 32.0
_SAME = 0.5  # of the steps have the divisor of the step before; a limit of the norm changes it
_DIVIDES = frozenset({"div", "div_", "true_divide", "__itruediv__", "__truediv__", "_foreach_div_"})
_MULTIPLIES = frozenset({"mul", "mul_", "__imul__", "__mul__", "_foreach_mul_"})


@dataclass(frozen=True, slots=True)
class HalfUnscaling:
    """A line that divides gradients in fp16.

    Attributes:
        divisor: The divisor of its first call; for a hook, as measured.
        calls: Number of calls; one of them divides one gradient or several.
        examined: Number of elements, other than 0, that were divided in the examined calls.
        lost: Number of these that became 0.
        site: The line; for a hook, the line that registers it.
        in_hook: Whether a hook of a parameter divides.
    """

    divisor: float
    calls: int
    examined: int
    lost: int
    site: Site | None
    in_hook: bool = False


@dataclass(frozen=True, slots=True)
class HalfUnscalings:
    """All such lines."""

    signal: ClassVar[str] = "unscaling"
    lines: tuple[HalfUnscaling, ...] = ()


@dataclass(slots=True)
class _Change:
    """A gradient before and after a hook, in numbers on its device.

    Attributes:
        largest: The largest magnitude before.
        left: What is left of this element.
        lost_up_to: The largest magnitude among the elements that became 0.
        before: Number of elements other than 0 before.
        after: Number of elements other than 0 after.
    """

    largest: torch.Tensor
    left: torch.Tensor
    lost_up_to: torch.Tensor
    before: torch.Tensor
    after: torch.Tensor

    @classmethod
    def of(cls, before: torch.Tensor, after: torch.Tensor) -> _Change:
        """Return the numbers of a change."""
        old, new = before.detach().abs().flatten(), after.detach().abs().flatten()
        place = old.argmax()
        lost = torch.where(new == 0, old, torch.zeros_like(old)).max()
        return cls(old[place], new[place], lost, old.count_nonzero(), new.count_nonzero())

    @property
    def divisor(self) -> float | None:
        """The quotient of the largest element; None if it is not finite, or if nothing is left."""
        largest, left = self.largest.item(), self.left.item()
        return largest / left if left and isfinite(largest) and isfinite(left) else None


@dataclass(slots=True)
class _Line:
    divisor: float
    calls: int = 0
    steps: int = 0
    same: int = 0
    last: float = 0.0
    made: int = -1
    counts: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def note(self, divisor: float, made: int) -> None:
        """Compare the divisor of a step with that of the step before."""
        if made != self.made:
            self.steps += 1
            self.same += divisor == self.last
            self.last, self.made = divisor, made


class Unscaling(Signal):
    """Counts the elements of gradients before and after their division."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._lines: dict[Mark | None, _Line] = {}
        self._before: list[torch.Tensor] | None = None
        self._hooks: dict[Mark | None, list[_Change]] = {}

    def before_write(
        self, name: str, written: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
    ) -> None:
        """Count the elements of gradients that are about to be divided in place."""
        del values
        self._before = None
        if (name in _DIVIDES or name in _MULTIPLIES) and written and _is_half(written[0]):
            self._before = [torch.count_nonzero(each) for each in written]

    def on_call(self, heard: Heard) -> None:
        """Count the elements that a division has left."""
        inverse = heard.name in _DIVIDES
        if not inverse and heard.name not in _MULTIPLIES:
            return
        before, self._before = self._before, None
        args = heard.call.args
        if not heard.halves or len(args) < 2 or not _is_half(heard.halves[0]):
            return
        divisor = _number(args[1], inverse=inverse)
        if divisor is None or divisor < _LARGE or not self._is_gradient(heard.given[0]):
            return
        mark = calling_line()
        if mark not in self._lines and len(self._lines) >= _LINES:
            return
        line = self._lines.setdefault(mark, _Line(divisor))
        line.calls += 1
        line.note(divisor, self.watched.grammar.made)
        if is_sampled(line.calls):
            old = before or [torch.count_nonzero(heard.given[0])]
            new = [torch.count_nonzero(each) for each in heard.halves]
            line.counts += zip(old, new, strict=False)

    def changed(self, mark: Mark | None, before: torch.Tensor, after: torch.Tensor) -> None:
        """Note what a hook has made of a gradient.

        Args:
            mark: The line that registers the hook.
            before: The gradient that the hook was given.
            after: The gradient that it left.
        """
        if mark not in self._hooks and len(self._hooks) >= _LINES:
            return
        if _is_half(before) and _is_half(after) and before.shape == after.shape and before.numel():
            self._hooks.setdefault(mark, []).append(_Change.of(before, after))

    def _is_gradient(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is the gradient of a model's parameter."""
        return any(
            each.grad is tensor
            for model in self.watched.registry.models.alive().values()
            for each in model.parameters()
        )

    def freeze(self) -> dict[str, Any]:
        """Return the lines; reads the counts."""
        lines = []
        for mark, line in self._lines.items():
            if line.same < _SAME * (line.steps - 1) or not line.same:
                continue
            examined = sum(int(old) for old, _ in line.counts)
            left = sum(int(new) for _, new in line.counts)
            lines.append(
                HalfUnscaling(line.divisor, line.calls, examined, examined - left, site(mark))
            )
        for mark, changes in self._hooks.items():
            found = _divided(changes, mark)
            lines += [found] if found is not None else []
        return {HalfUnscalings.signal: HalfUnscalings(tuple(lines))}


def _divided(changes: list[_Change], mark: Mark | None) -> HalfUnscaling | None:
    """Return the division that the changes by a hook are; None if they are none, as for a mask.

    If it leaves only zeros, as that of a frozen parameter does, too, the divisor is inf.
    """
    known = [(one.divisor, one) for one in changes if one.divisor is not None]
    divisors = [divisor for divisor, _ in known]
    if known and (min(divisors) < _LARGE or max(divisors) > _SPREAD * min(divisors)):
        return None
    largest = max(divisors, default=_LARGEST)
    if any(one.lost_up_to.item() > _SPREAD * largest * _SMALLEST for one in changes):
        return None
    examined = sum(int(one.before) for one in changes)
    lost = examined - sum(int(one.after) for one in changes)
    divisor = largest if known else inf
    return HalfUnscaling(divisor, len(changes), examined, lost, site(mark), in_hook=True)


def _is_half(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.float16 and not tensor.requires_grad


def _number(value: Any, *, inverse: bool) -> float | None:
    """Return the divisor that a number stands for; None for tensors that are not on the CPU."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.device.type != "cpu":
            return None
        value = value.item()
    if not isinstance(value, int | float) or value <= 0:
        return None
    return float(value) if inverse else 1 / value
