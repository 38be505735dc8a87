"""Examines the targets of CTC losses: whether they contain the blank, or need too many time steps.

Nothing is read while the program runs; a few small copies of targets are compared at its end.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import torch

from halfstep.doctor.internals import is_functorch_tensor
from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.doctor.signals.values.samples import is_sampled
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfstep.doctor.signals.watched import Watched

_COPIES = 16  # per line
_LINES = 16
_ELEMENTS = 65536
_KEPT_UNUSED = 3
_Key: TypeAlias = "tuple[Mark | None, int, int, bool]"


@dataclass(frozen=True, slots=True)
class Alignment:
    """The CTC losses of a line whose targets contain the blank, or are too long.

    Attributes:
        blank: The class of the blank.
        classes: Number of classes.
        samples: Number of targets that were examined.
        containing: Number of these with the blank.
        at_the_end: Number of these in which only blanks follow the first blank, as in padding.
        unused: The last classes, up to three, that no examined target contains, the last one first.
        too_long: Number of targets that need more time steps than their input has.
        ignores: Whether the loss counts the inf of such samples as 0, by zero_infinity.
        site: The line.
    """

    blank: int
    classes: int
    samples: int
    containing: int
    at_the_end: int
    unused: tuple[int, ...]
    too_long: int
    ignores: bool
    site: Site | None


@dataclass(frozen=True, slots=True)
class Alignments:
    """All such lines."""

    signal: ClassVar[str] = "alignments"
    lines: tuple[Alignment, ...] = ()


class AlignmentSignal(Signal):
    """Copies the targets of some calls of each line."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._counts: Counter[_Key] = Counter()
        self._copies: dict[_Key, list[tuple[torch.Tensor, Any, Any]]] = {}

    def hooks(self) -> Iterator[Hook]:
        """Yield the hook of the function that all CTC losses call."""
        yield Hook(torch, "ctc_loss", self.watched.here(self._on_loss))

    def _on_loss(self, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if self.watched.guard.is_own:  # A replay would be given operators that the step has not.
            return result
        with self.watched.guard.own():
            self._copy(result, *args, **kwargs)
        return result

    def _copy(
        self,
        result: torch.Tensor,
        log_probs: torch.Tensor,
        targets: torch.Tensor,
        input_lengths: Any,
        target_lengths: Any,
        blank: int = 0,
        reduction: int = 1,
        zero_infinity: bool = False,
    ) -> None:
        del reduction
        if not result.requires_grad or is_functorch_tensor(targets) or targets.is_meta:
            return
        if targets.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        key = calling_line(), blank, log_probs.shape[-1], zero_infinity
        if key not in self._counts and len(self._counts) >= _LINES:
            return
        self._counts[key] += 1
        copies = self._copies.setdefault(key, [])
        is_small = targets.numel() <= _ELEMENTS
        if is_sampled(self._counts[key]) and len(copies) < _COPIES and is_small:
            counts, steps = (
                each.detach().clone() if isinstance(each, torch.Tensor) else each
                for each in (target_lengths, input_lengths)
            )
            copies.append((targets.detach().clone(), counts, steps))

    def freeze(self) -> dict[str, Any]:
        """Return the lines; reads the copies."""
        lines = [_alignment(*key, self._copies[key]) for key in self._counts]
        faulty = tuple(each for each in lines if each.containing or each.too_long)
        return {Alignments.signal: Alignments(faulty)}


def _alignment(
    mark: Mark | None,
    blank: int,
    classes: int,
    ignores: bool,
    copies: Sequence[tuple[torch.Tensor, Any, Any]],
) -> Alignment:
    targets = [labels for each, counts, _ in copies for labels in _labels(each, counts)]
    steps = [each for _, _, lengths in copies for each in _numbers(lengths)]
    too_long = sum(_steps_of(each) > most for each, most in zip(targets, steps, strict=False))
    used = {label for each in targets for label in each}
    containing = [each for each in targets if blank in each]
    at_the_end = [each for each in containing if {*each[each.index(blank) :]} == {blank}]
    unused = [each for each in reversed(range(classes)) if each not in used]
    return Alignment(
        blank,
        classes,
        len(targets),
        len(containing),
        len(at_the_end),
        tuple(unused[:_KEPT_UNUSED]),
        too_long,
        ignores,
        site(mark),
    )


def _labels(targets: torch.Tensor, lengths: Any) -> Iterator[list[int]]:
    """Yield the labels of each sample, of targets that are padded or joined."""
    labels = targets.tolist()
    begin = 0
    for number, count in enumerate(_numbers(lengths)):
        if targets.dim() > 1:
            yield labels[number][:count]
        else:
            yield labels[begin : begin + count]
            begin += count


def _numbers(lengths: Any) -> list[int]:
    numbers = lengths.tolist() if isinstance(lengths, torch.Tensor) else lengths
    return [numbers] if isinstance(numbers, int) else [*numbers]


def _steps_of(labels: Sequence[int]) -> int:
    """Return the time steps that a target needs: between equal labels there is a blank."""
    return len(labels) + sum(a == b for a, b in pairwise(labels))
