"""Counts the calls of functions and modules by the loop, with the formats of their tensors."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from halfstep.doctor.internals import is_functorch_tensor
from halfstep.doctor.record import Broadcast, Call
from halfstep.doctor.record.sites import Mark, calling_line, site
from halfstep.doctor.tape.tape import autocast_state
from halfstep.formats import format_name

if TYPE_CHECKING:
    from collections.abc import Iterator

INPUTS = 4
FEWEST = 4
# Under autocast, torch refuses these on an accelerator, and computes them in fp32 on a CPU.
_REFUSED = {"binary_cross_entropy", "BCELoss"}
_SUBTRACTIONS = {
    *(torch.sub, torch.subtract, torch.rsub),
    *(torch.Tensor.sub, torch.Tensor.subtract, torch.Tensor.__sub__, torch.Tensor.__rsub__),
}
_LOSSES = {
    *(functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss, functional.huber_loss),
    functional.poisson_nll_loss,
}
_LOSS_MODULES = {nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.PoissonNLLLoss}
_EXAMINED = {1, 2, 4, 8, 16}  # the numbers of the calls whose scores are examined
_NEAR_ONE = 1e-2  # the rounding error of a sum of probabilities in bf16


class Calls:
    """Counts calls; calls that differ only in their source line are counted together."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[Any, ...]] = Counter()
        self._marks: dict[tuple[Any, ...], Mark | None] = {}
        self._rounded: set[tuple[Any, ...]] = set()
        self._classes: dict[tuple[Any, ...], int] = {}
        self._broadcasts: dict[tuple[Any, ...], Broadcast] = {}

    def count(
        self,
        name: str,
        given: list[torch.Tensor],
        made: list[torch.Tensor],
        scores: torch.Tensor | None = None,
        found: Broadcast | None = None,
    ) -> list[torch.Tensor]:
        """Count a call, if it has floating-point tensors.

        Args:
            name: Name of the function, or class of the module.
            given: The tensors in its arguments.
            made: The tensors in its result.
            scores: The argument of a loss for which it needs logits, or logarithms of
                probabilities; None for other calls.
            found: Outputs and targets that broadcast in this call.

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
        self._counts[key] += 1
        if found is not None and key not in self._broadcasts:
            self._broadcasts[key] = found
            self._marks[key] = calling_line()
        if scores is not None and self._counts[key] in _EXAMINED:
            classes = _classes_of_probabilities(scores)
            self._classes[key] = min(classes, self._classes.get(key, classes))
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
    dim = min(scores.ndim - 1, 1)
    if scores.ndim == 0 or not scores.numel() or scores.shape[dim] < 2:
        return 0
    values = scores.detach().float()
    is_one = (values.sum(dim) - 1).abs() < _NEAR_ONE
    return scores.shape[dim] if bool((values >= 0).all() & is_one.all()) else 0


def broadcast(function: Any, given: list[torch.Tensor]) -> Broadcast | None:
    """Return the shapes of outputs and targets that broadcast although they have as many elements.

    A parameter is no output: its difference to an input of the batch is usually one of all pairs.

    Args:
        function: The called function or module.
        given: The tensors in its arguments.
    """
    is_subtraction = not isinstance(function, nn.Module) and function in _SUBTRACTIONS
    is_loss = type(function) in _LOSS_MODULES or (not is_subtraction and function in _LOSSES)
    if not (is_subtraction or is_loss) or not _are_alike(given):
        return None
    if is_subtraction and any(map(_has_gained_a_dimension, given)):
        return None
    at = int(given[0].requires_grad)
    outputs, targets = given[1 - at], given[at]
    try:
        together = tuple(torch.broadcast_shapes(outputs.shape, targets.shape))
    except RuntimeError:  # as of the loss itself
        return None
    if math.prod(together) == outputs.numel() or _are_equal(targets):
        return None
    return Broadcast(tuple(outputs.shape), tuple(targets.shape), together, at)


def _are_alike(given: list[torch.Tensor]) -> bool:
    """Return whether tensors are an output and targets of other shapes with as many elements."""
    if len(given) != 2 or given[0].ndim == given[1].ndim or not torch.is_grad_enabled():
        return False
    if not all(map(_is_plain, given)) or given[0].numel() != given[1].numel():
        return False
    outputs = [each for each in given if each.requires_grad]
    return len(outputs) == 1 and outputs[0].grad_fn is not None


def _is_plain(tensor: torch.Tensor) -> bool:
    is_plain = type(tensor) is torch.Tensor and not is_functorch_tensor(tensor)
    return is_plain and tensor.layout is torch.strided and not tensor.is_nested


def _are_equal(targets: torch.Tensor) -> bool:
    """Return whether all targets are equal, as in a GAN; not known on an accelerator."""
    return targets.device.type == "cpu" and bool((targets == targets.flatten()[0]).all())


def _has_gained_a_dimension(tensor: torch.Tensor) -> bool:
    """Return whether a tensor was given another dimension, as in x[:, None], to be broadcast."""
    made = tensor.grad_fn
    if type(made).__name__.startswith("Unsqueeze"):
        return True
    if len(getattr(made, "_saved_self_sym_sizes", tensor.shape)) < tensor.ndim:
        return True
    base = tensor._base  # noqa: SLF001
    return base is not None and base.ndim < tensor.ndim


def _is_rounded(given: list[torch.Tensor]) -> bool:
    first = next((each for each in given if each.is_floating_point()), None)
    dtype = dict(autocast_state()).get("cpu")
    if first is None or dtype is None or first.device.type != "cpu" or first.numel() < FEWEST:
        return False
    return first.dtype == torch.float32 and torch.equal(first, first.to(dtype).float())
