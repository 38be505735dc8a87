"""Counts the calls of functions and modules by the loop, with the formats of their tensors."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from halfstep.doctor.internals import is_functorch_tensor
from halfstep.doctor.record import Broadcast, Call
from halfstep.doctor.record.sites import Mark, calling_line, site
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.doctor.tape.tape import autocast_state
from halfstep.doctor.tensors.graph import is_of_probabilities, is_of_sigmoid
from halfstep.doctor.tensors.inexact import is_inexact
from halfstep.doctor.tensors.nesting import tensors_in
from halfstep.formats import format_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.doctor.signals.watched import Watched

INPUTS = 4
FEWEST = 4
# Under autocast, torch refuses these on an accelerator, and computes them in fp32 on a CPU.
_REFUSED = {"binary_cross_entropy", "BCELoss"}
_BINARY = {
    *("binary_cross_entropy_with_logits", "BCEWithLogitsLoss"),
    *("multilabel_soft_margin_loss", "MultiLabelSoftMarginLoss"),
}
_CROSS_ENTROPIES = {"cross_entropy", "CrossEntropyLoss"}
_EXAMINED = {1, 2, 4, 8, 16}  # the numbers of the calls whose scores are examined
_NEAR_ONE = 1e-2  # the rounding error of a sum of probabilities in bf16


class Calls(Signal):
    """Counts calls; calls that differ only in their source line are counted together."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._counts: Counter[tuple[Any, ...]] = Counter()
        self._marks: dict[tuple[Any, ...], Mark | None] = {}
        self._rounded: set[tuple[Any, ...]] = set()
        self._classes: dict[tuple[Any, ...], int] = {}
        self._sigmoids: set[tuple[Any, ...]] = set()
        self._broadcasts: dict[tuple[Any, ...], Broadcast] = {}

    def hooks(self) -> Iterator[Hook]:
        """Yield the hook of the loss that torch refuses under autocast, for calls in modules."""
        yield Hook(functional, "binary_cross_entropy", self.watched.here(self._on_refused))

    def _on_refused(self, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if self.watched.guard.is_inside and autocast_state():
            with self.watched.guard.own():
                name = "binary_cross_entropy"
                self.count(name, tensors_in((args, kwargs)), tensors_in(result))
        return result

    def count(
        self,
        name: str,
        given: list[torch.Tensor],
        made: list[torch.Tensor],
        scores: torch.Tensor | None = None,
        broadcast: Broadcast | None = None,
    ) -> list[torch.Tensor]:
        """Count a call, if it has floating-point tensors.

        Args:
            name: Name of the function, or class of the module.
            given: The tensors in its arguments.
            made: The tensors in its result.
            scores: The argument of a loss for which it needs logits, or logarithms of
                probabilities; None for other calls.
            broadcast: Outputs and targets that broadcast in this call.

        Returns:
            The floating-point and complex tensors in the result.
        """
        floats = [each for each in made if is_inexact(each)]
        formats = tuple([each.dtype for each in given if each.is_floating_point()][:INPUTS])
        if not (floats or formats):
            return floats
        result_format = floats[0].dtype if floats else None
        key = (name, formats, result_format, torch.is_grad_enabled(), autocast_state())
        if key not in self._counts:
            self._marks[key] = calling_line()
            if name in _REFUSED and _is_rounded(given):
                self._rounded.add(key)
        self._counts[key] += 1
        if broadcast is not None and key not in self._broadcasts:
            self._broadcasts[key] = broadcast
            self._marks[key] = calling_line()
        if scores is not None and self._counts[key] in _EXAMINED:
            classes = (
                int(is_of_probabilities(scores))
                if name in _BINARY
                else _classes_of_probabilities(scores)
            )
            if not classes and name in _CROSS_ENTROPIES and is_of_sigmoid(scores):
                classes = _classes(scores)
                self._sigmoids.add(key)
            self._classes[key] = min(classes, self._classes.get(key, classes))
        return floats

    def freeze(self) -> dict[str, Any]:
        """Return the counted calls."""
        return {"calls": tuple(self._counted())}

    def _counted(self) -> Iterator[Call]:
        for key, count in self._counts.items():
            name, given, result, gradients, autocast = key
            yield Call(
                name=name,
                formats=tuple(map(format_name, given)),
                result=format_name(result) if result is not None else "",
                gradients=gradients,
                autocast=",".join(format_name(dtype) for _, dtype in autocast),
                count=count,
                site=site(self._marks[key]),
                rounded=key in self._rounded,
                classes=self._classes.get(key, 0),
                sigmoid=key in self._sigmoids,
                broadcast=self._broadcasts.get(key),
            )


def _classes_of_probabilities(scores: torch.Tensor) -> int:
    """Return the number of classes if the scores of a model are probabilities, and 0 if not."""
    if type(scores) is not torch.Tensor or is_functorch_tensor(scores) or not scores.requires_grad:
        return 0
    if scores.layout is not torch.strided or scores.is_nested or scores.is_meta:
        return 0
    if scores.is_cuda and torch.cuda.is_current_stream_capturing():
        return 0
    if _classes(scores) < 2:
        return 0
    values = scores.detach().float()
    is_one = (values.sum(min(scores.ndim - 1, 1)) - 1).abs() < _NEAR_ONE
    return _classes(scores) if bool((values >= 0).all() & is_one.all()) else 0


def _classes(scores: torch.Tensor) -> int:
    """Return the number of classes of scores; 0 without any."""
    return scores.shape[min(scores.ndim - 1, 1)] if scores.ndim and scores.numel() else 0


def _is_rounded(given: list[torch.Tensor]) -> bool:
    first = next((each for each in given if each.is_floating_point()), None)
    dtype = dict(autocast_state()).get("cpu")
    if first is None or dtype is None or first.device.type != "cpu" or first.numel() < FEWEST:
        return False
    return first.dtype == torch.float32 and torch.equal(first, first.to(dtype).float())
