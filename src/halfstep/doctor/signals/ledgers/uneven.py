"""Micro-batches of one step whose losses are means over different numbers of targets.

A loss is compared with the mean that it was computed from: if their quotient is the same for all
micro-batches of a step, each of them counts the same. All numbers stay on their device until the
program's end, and only the first calls are examined.
"""

from __future__ import annotations

from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from halfstep.doctor.record.sites import Mark, Site, site
from halfstep.doctor.signals.signal import Signal
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfstep.doctor.record import Fact
    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

CALLS = 512
WINDOWS = 64
PARTS = 64
_LOSSES = frozenset({"cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss"})
_MEANS = frozenset(
    {
        *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "mean"),
        *("MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss"),
        *("binary_cross_entropy_with_logits", "BCEWithLogitsLoss"),
    }
)
"""Losses whose targets have no classes, so that all their elements count."""
_IGNORED = -100  # torch's default
_SAME = 0.02  # relative difference of quotients that counts as rounding, also in half
_FACTOR, _PADDED = 2.0, 1.5  # times as many targets, and where some are left out as padding
_FEWEST = 8  # steps
_ERRORS = 6.0  # standard errors


@dataclass(frozen=True, slots=True)
class UnevenSteps:
    """The steps of one optimizer that used several micro-batches.

    Attributes:
        number: Number of the optimizer.
        windows: Number of these steps that were examined.
        uneven: Number of these in which each micro-batch counts the same, although one has at least
            twice as many targets as another one, or 1.5 times as many if some are padding.
        targets: The numbers of targets in the first such step.
        classes: Whether the targets are classes.
        apart: By how much the mean over micro-batches exceeds that over all targets, as a share of
            the latter, in the mean of these steps or of some in a row; 0 if chance explains it.
        site: The line of the backward passes.
    """

    number: int
    windows: int
    uneven: int
    targets: tuple[int, ...]
    classes: bool
    apart: float
    site: Site | None


@dataclass(frozen=True, slots=True)
class UnevenLedger:
    """These steps, for each optimizer with some."""

    signal: ClassVar[str] = "uneven"
    optimizers: tuple[UnevenSteps, ...] = ()


@dataclass(slots=True, eq=False)
class _Part:
    """A backward: its line, the numbers of targets and of all, the mean over them, the loss."""

    mark: Mark | None
    count: torch.Tensor | int
    size: int
    mean: torch.Tensor
    classes: bool
    loss: torch.Tensor


class Uneven(Signal):
    """Books each backward with the last mean over targets before it."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._open: dict[int, list[_Part | None]] = {}
        self._windows: dict[int, list[list[_Part]]] = {}
        self._seen: dict[int, int] = {}
        self._calls = 0
        self._mean: tuple[torch.Tensor | int, int, torch.Tensor, bool] | None = None
        self._loss: torch.Tensor | None = None

    def on_call(self, heard: Heard) -> None:
        """Count the targets of a loss."""
        if heard.name not in _LOSSES | _MEANS or self._calls >= CALLS:
            return
        result, given = heard.result, heard.call
        if not (isinstance(result, torch.Tensor) and not result.dim() and result.requires_grad):
            return
        if heard.name in _MEANS:
            self._take_mean(heard, result)
            return
        source = heard.module
        reduction = getattr(source, "reduction", given.kwargs.get("reduction", "mean"))
        target = given.args[1] if len(given.args) > 1 else given.kwargs.get("target")
        if reduction != "mean" or not isinstance(target, torch.Tensor):
            return
        if target.is_floating_point() or type(target) is not torch.Tensor:
            return
        self._calls += 1
        ignored = getattr(source, "ignore_index", given.kwargs.get("ignore_index", _IGNORED))
        self._mean = (target != ignored).sum(), target.numel(), result.detach(), True

    def _take_mean(self, heard: Heard, result: torch.Tensor) -> None:
        """Count the elements of a mean."""
        given = heard.call
        reduction = getattr(heard.module, "reduction", given.kwargs.get("reduction", "mean"))
        if reduction == "mean" and heard.given and not (self._mean and heard.name == "mean"):
            self._calls += 1
            size = max(each.numel() for each in heard.given)
            self._mean = size, size, result.detach(), False

    def on_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """Remember the loss."""
        alone = self._mean is not None and len(losses) == 1 and losses[0].numel() == 1
        self._loss = self.watched.tape.entries[-1].value if alone else None

    def on_event(self, kind: str, mark: Mark | None, facts: Mapping[str, Fact]) -> None:
        """Book an action of the loop."""
        if kind == "backward":
            part = None
            if self._mean is not None and self._loss is not None:
                part = _Part(mark, *self._mean, self._loss)
            self._mean = self._loss = None
            for number in str(facts["reaches"]).split(","):
                if number and len(window := self._open.setdefault(int(number), [])) < PARTS:
                    window.append(part)
        elif kind in {"zero", "drop", "step"}:
            self._close(int(str(facts["optimizer"])), used=kind == "step")

    def _close(self, number: int, *, used: bool) -> None:
        window = self._open.pop(number, [])
        parts = [each for each in window if each is not None]
        if not used or len(parts) < 2 or len(parts) < len(window):
            return
        windows = self._windows.setdefault(number, [])
        if len(windows) < WINDOWS and len({each.mark for each in parts}) == 1:
            windows.append(parts)

    def freeze(self) -> dict[str, Any]:
        """Return the steps; reads the losses and the numbers of targets."""
        found = []
        for number, windows in sorted(self._windows.items()):
            uneven = [(each, counts) for each in windows if (counts := _uneven(each))]
            if uneven:
                part = windows[0][0]
                found.append(
                    UnevenSteps(
                        number,
                        windows=len(windows),
                        uneven=len(uneven),
                        targets=uneven[0][1],
                        classes=part.classes,
                        apart=_systematic([_apart(*each) for each in uneven]),
                        site=site(part.mark),
                    )
                )
        return {UnevenLedger.signal: UnevenLedger(tuple(found))}


def _uneven(window: Sequence[_Part]) -> tuple[int, ...]:
    """Return the numbers of targets of a step whose micro-batches count the same; () if they do."""
    counts = tuple(int(each.count) for each in window)
    is_padded = any(count < each.size for count, each in zip(counts, window, strict=True))
    if min(counts) <= 0 or max(counts) < (_PADDED if is_padded else _FACTOR) * min(counts):
        return ()
    quotients = [float(each.loss) / mean if (mean := float(each.mean)) else 0.0 for each in window]
    low, high = min(quotients), max(quotients)
    return counts if low > 0 and high - low <= _SAME * high else ()


def _apart(window: Sequence[_Part], counts: Sequence[int]) -> float:
    """Return by how much the mean over micro-batches exceeds that over targets, as a share."""
    means = [float(each.mean) for each in window]
    whole = sum(mean * count for mean, count in zip(means, counts, strict=True)) / sum(counts)
    return sum(means) / len(means) / whole - 1 if whole else 0.0


def _systematic(values: Sequence[float]) -> float:
    """Return the mean of values, or of some in a row, that is far from 0; 0.0 without one.

    A training that fits the small micro-batches first has a larger mean in its first steps, and a
    smaller one later.
    """
    rows = (values[at : at + _FEWEST] for at in range(0, len(values), _FEWEST))
    parts = [each for each in (values, *rows) if len(each) >= _FEWEST]
    means = [(fmean(each), stdev(each) / len(each) ** 0.5) for each in parts]
    return max((mean for mean, error in means if abs(mean) > _ERRORS * error), key=abs, default=0.0)
