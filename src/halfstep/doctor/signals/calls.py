"""Counts the calls of functions and modules by the loop, with the formats of their tensors."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from halfstep.doctor.record import Call
from halfstep.doctor.record.sites import Mark, calling_line, site
from halfstep.doctor.tape.tape import autocast_state
from halfstep.formats import format_name

if TYPE_CHECKING:
    from collections.abc import Iterator

INPUTS = 4
FEWEST = 4
# Under autocast, torch refuses these on an accelerator, and computes them in fp32 on a CPU.
_REFUSED = {"binary_cross_entropy", "BCELoss"}
# These need logits, or logarithms of probabilities.
_OF_CLASSES = {"cross_entropy", "CrossEntropyLoss", "nll_loss", "NLLLoss"}
_NEAR_ONE = 1e-2  # the rounding error of a sum of probabilities in bf16


class Calls:
    """Counts calls; calls that differ only in their source line are counted together."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[Any, ...]] = Counter()
        self._marks: dict[tuple[Any, ...], Mark | None] = {}
        self._rounded: set[tuple[Any, ...]] = set()
        self._classes: dict[tuple[Any, ...], int] = {}

    def count(
        self, name: str, given: list[torch.Tensor], made: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Count a call, if it has floating-point tensors.

        Args:
            name: Name of the function, or class of the module.
            given: The tensors in its arguments.
            made: The tensors in its result.

        Returns:
            The floating-point and complex tensors in the result.
        """
        floats = [each for each in made if each.is_floating_point() or each.is_complex()]
        formats = tuple([each.dtype for each in given if each.is_floating_point()][:INPUTS])
        if not (floats or formats):
            return floats
        result_format = floats[0].dtype if floats else None
        key = (name, formats, result_format, torch.is_grad_enabled(), autocast_state())
        if key not in self._counts:
            self._marks[key] = calling_line()
            if name in _REFUSED and _is_rounded(given):
                self._rounded.add(key)
            if name in _OF_CLASSES:
                self._classes[key] = _classes_of_probabilities(given)
        self._counts[key] += 1
        return floats

    def freeze(self) -> Iterator[Call]:
        """Yield the counted calls."""
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
            )


def _classes_of_probabilities(given: list[torch.Tensor]) -> int:
    """Return the number of classes if the first input contains probabilities, and 0 if not."""
    first = next((each for each in given if each.is_floating_point()), None)
    if first is None or type(first) is not torch.Tensor or first.ndim == 0 or not first.numel():
        return 0
    if first.is_cuda and torch.cuda.is_current_stream_capturing():
        return 0
    dim = min(first.ndim - 1, 1)
    values = first.detach().float()
    is_one = (values.sum(dim) - 1).abs() < _NEAR_ONE
    classes = first.shape[dim]
    return classes if classes > 1 and bool((values >= 0).all() & is_one.all()) else 0


def _is_rounded(given: list[torch.Tensor]) -> bool:
    first = next((each for each in given if each.is_floating_point()), None)
    dtype = dict(autocast_state()).get("cpu")
    if first is None or dtype is None or first.device.type != "cpu" or first.numel() < FEWEST:
        return False
    return first.dtype == torch.float32 and torch.equal(first, first.to(dtype).float())
