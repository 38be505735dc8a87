"""Measures the targets of losses that need probabilities as targets."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from halfstep.doctor.record import TargetRange
from halfstep.doctor.record.sites import site
from halfstep.doctor.tape.tape import Slot
from halfstep.doctor.tensors.local import local

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from halfstep.doctor.tape.tape import Entry

_LOSSES = {
    *("binary_cross_entropy_with_logits", "BCEWithLogitsLoss"),
    *("multilabel_soft_margin_loss", "MultiLabelSoftMarginLoss"),
}
_WRITTEN = "the binary cross entropy"
_PRODUCTS = {"mul", "__mul__", "__rmul__", "multiply"}
_SUMS = {"add", "__add__", "__radd__", "sub", "__sub__", "__rsub__", "rsub", "subtract"}
_LOGARITHMS = {"log", "log1p", "log2", "logsigmoid", "LogSigmoid", "xlogy"}
_PASSES = {"clamp", "clip", "clamp_min", "neg", "__neg__", "negative"} | _PRODUCTS
_REDUCES = {"mean", "sum", "neg", "__neg__", "negative", "div", "__truediv__"} | _SUMS | _PRODUCTS


def target_ranges(entries: Iterable[Entry]) -> Iterator[TargetRange]:
    """Yield the range of each tensor of targets in a step, if all of its elements count.

    Targets with weights or without a reduction may contain a mark for elements that the loop leaves
    out, and targets that were changed in place since the call are no longer known.

    Args:
        entries: The calls of the step on the tape.
    """
    entries = [*entries]
    yield from _WrittenOut(entries).ranges()
    for entry in entries:
        name = _name(entry)
        targets = entry.args[1] if len(entry.args) > 1 else entry.kwargs.get("target")
        if name not in _LOSSES or not isinstance(targets, torch.Tensor) or not targets.numel():
            continue
        if _leaves_out(entry) or any(
            given is targets and given._version != version for given, version in entry.given
        ):
            continue
        yield from _range(name, targets, entry)


def _range(name: str, targets: torch.Tensor, entry: Entry) -> Iterator[TargetRange]:
    low, high = (each.item() for each in torch.aminmax(local(targets.detach())))
    if math.isfinite(low) and math.isfinite(high):
        yield TargetRange(name, low, high, site(entry.mark))


def _name(entry: Entry) -> str:
    return getattr(entry.function, "__name__", type(entry.function).__name__)


class _WrittenOut:
    """Binary cross entropies that the loop writes out.

    Either `t * log(p) + (1 - t) * log(1 - p)`, also with more factors, or `softplus(z) - t * z`.

    Args:
        entries: The calls of the step.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = [each for each in entries if each.kind in {"call", "module"}]
        self._makers = {number: each for each in self._entries for number in each.results}
        self._users: dict[int, list[Entry]] = {}
        for each in self._entries:
            for arg in each.args:
                if isinstance(arg, Slot):
                    self._users.setdefault(arg.number, []).append(each)

    def ranges(self) -> Iterator[TargetRange]:
        """Yield the range of the targets of each."""
        products = [each for each in self._entries if _name(each) in _PRODUCTS]
        known = [(_factors(each), each) for each in products]
        terms = [(*factors, each) for factors, each in known if factors is not None]
        of_logarithms = [each for each in terms if self._is_logarithm(each[1])]
        for targets, _, entry in of_logarithms:
            others = (other for other, _, its in of_logarithms if its is not entry)
            if any(_are_complements(targets, other) for other in others) and self._is_mean(entry):
                yield from _range(_WRITTEN, targets, entry)
                return
        for targets, scores, entry in terms:
            if any(_is_softplus(each, scores) for each in self._partners(entry)):
                if self._is_mean(entry):
                    yield from _range(_WRITTEN, targets, entry)
                return

    def _is_logarithm(self, slot: Any, depth: int = 3) -> bool:
        maker = self._makers.get(slot.number) if isinstance(slot, Slot) else None
        if maker is None:
            return False
        if _name(maker) in _LOGARITHMS:
            return True
        return (
            depth > 0
            and _name(maker) in _PASSES
            and any(self._is_logarithm(each, depth - 1) for each in maker.args)
        )

    def _partners(self, entry: Entry) -> Iterator[Entry]:
        """Yield what makes the other terms of the sums that a term goes into."""
        for user in self._users.get(entry.results[0], ()):
            if _name(user) in _SUMS:
                for each in user.args:
                    maker = self._makers.get(each.number) if isinstance(each, Slot) else None
                    if maker is not None and maker is not entry:
                        yield maker

    def _is_mean(self, entry: Entry) -> bool:
        """Return whether all elements of a term count in a mean or a sum."""
        waiting = [*entry.results]
        while waiting:
            users = self._users.get(waiting.pop(), ())
            for user in users:
                if _name(user) not in _REDUCES:
                    return False
                factors = _factors(user) if _name(user) in _PRODUCTS else None
                if factors is not None and factors[0].numel() > 1:
                    return False  # a mask or weights
                if _name(user) not in {"mean", "sum"}:
                    waiting += user.results
        return True


def _factors(entry: Entry) -> tuple[torch.Tensor, Slot] | None:
    """Return the factors of a product of a tensor that is known and a result of the loop."""
    known = [each for each in entry.args[:2] if isinstance(each, torch.Tensor)]
    made = [each for each in entry.args[:2] if isinstance(each, Slot)]
    if len(known) != 1 or len(made) != 1 or known[0].requires_grad or not known[0].numel():
        return None
    if any(given is known[0] and given._version != version for given, version in entry.given):
        return None
    return known[0], made[0]


def _is_softplus(entry: Entry, scores: Slot) -> bool:
    return _name(entry).lower() == "softplus" and bool(entry.args) and entry.args[0] == scores


def _are_complements(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or not one.is_floating_point() or one.numel() < 2:
        return False
    return bool(((one + other - 1).abs() <= 1e-3 * (1 + one.abs())).all())


def _leaves_out(entry: Entry) -> bool:
    """Return whether the call of a loss can leave out elements, by weights or no reduction."""
    if isinstance(entry.function, torch.nn.Module):
        return entry.function.weight is not None or entry.function.reduction == "none"
    given = {name for name, each in entry.kwargs.items() if each is not None}
    return (
        len(entry.args) > 2
        or bool(given & {"weight", "size_average", "reduce"})
        or entry.kwargs.get("reduction") == "none"
    )
