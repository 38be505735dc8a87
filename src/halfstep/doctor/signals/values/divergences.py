"""Examines the arguments of Kullback-Leibler divergences: logarithms, probabilities or neither."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard

import torch
from torch import nn
from torch.nn import functional

from halfstep.doctor.internals import is_functorch_tensor
from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Signal
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

_EXAMINED = {1, 2, 4, 8, 16}
_LINES = 64
_NEAR_ONE = 1e-2  # the rounding error of a sum of probabilities in bf16
PROBABILITIES, LOGARITHMS, NEITHER = "probabilities", "logarithms", "neither"


@dataclass(frozen=True, slots=True)
class Divergence:
    """The calls of a divergence in one line.

    Attributes:
        name: The function's name, or the module's class.
        inputs: What all examined inputs are: probabilities, logarithms or neither.
        targets: What all examined targets are.
        log_target: Whether the call says that its targets are logarithms.
        count: Number of calls.
        site: The line.
    """

    name: str
    inputs: str
    targets: str
    log_target: bool
    count: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class Divergences:
    """All divergences with gradients."""

    signal: ClassVar[str] = "divergences"
    calls: tuple[Divergence, ...] = ()


class DivergenceSignal(Signal):
    """Examines some calls of each line."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._counts: Counter[tuple[str, bool, Mark | None]] = Counter()
        self._kinds: dict[tuple[str, bool, Mark | None], set[tuple[str, str]]] = {}

    def on_call(self, heard: Heard) -> None:
        """Examine a call of `kl_div` or of its module."""
        function = heard.call.function
        if function is not functional.kl_div and not isinstance(heard.module, nn.KLDivLoss):
            return
        args, kwargs = heard.call.args, heard.call.kwargs
        inputs = args[0] if args else kwargs.get("input")
        targets = args[1] if len(args) > 1 else kwargs.get("target")
        log_target = bool(getattr(heard.module, "log_target", kwargs.get("log_target", False)))
        self.take(heard.name, inputs, targets, calling_line(), log_target=log_target)

    def take(
        self, name: str, inputs: Any, targets: Any, mark: Mark | None, *, log_target: bool
    ) -> None:
        """Examine the arguments of a divergence."""
        if not (_is_readable(inputs) and _is_readable(targets) and inputs.requires_grad):
            return
        key = name, log_target, mark
        if key not in self._counts and len(self._counts) >= _LINES:
            return
        self._counts[key] += 1
        if self._counts[key] in _EXAMINED:
            kinds = _kind(inputs), _kind(targets)
            if all(kinds):
                self._kinds.setdefault(key, set()).add(kinds)

    def freeze(self) -> dict[str, Any]:
        """Return the divergences."""
        return {
            Divergences.signal: Divergences(
                tuple(
                    Divergence(
                        name,
                        _common({inputs for inputs, _ in self._kinds.get(key, ())}),
                        _common({targets for _, targets in self._kinds.get(key, ())}),
                        log_target,
                        count,
                        site(mark),
                    )
                    for key, count in self._counts.items()
                    for name, log_target, mark in (key,)
                )
            )
        }


def _common(kinds: set[str]) -> str:
    return next(iter(kinds)) if len(kinds) == 1 else ""


def _is_readable(tensor: Any) -> TypeGuard[torch.Tensor]:
    return (
        isinstance(tensor, torch.Tensor)
        and type(tensor) in {torch.Tensor, nn.Parameter}
        and not (is_functorch_tensor(tensor) or tensor.is_meta or tensor.is_nested)
        and tensor.layout is torch.strided
        and tensor.ndim > 0
        and tensor.numel() > 1
        and not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def _kind(tensor: torch.Tensor) -> str:
    """Return what a tensor contains; "" if its numbers are no longer known, as after a NaN."""
    values = tensor.detach().float()
    if bool(values.isnan().any()):
        return ""
    if bool((values <= 0).all()):
        return LOGARITHMS
    if bool((values >= 0).all()) and _sum_to_one(values):
        return PROBABILITIES
    return NEITHER


def _sum_to_one(values: torch.Tensor) -> bool:
    """Return whether values sum to 1 over a dimension, over each sample, or all together."""
    sums = [values.sum(dim) for dim in {1, -1} if values.ndim > dim]
    sums += [values.flatten(min(1, values.ndim - 1)).sum(-1), values.sum()]
    return any(bool(((each - 1).abs() < _NEAR_ONE).all()) for each in sums)
