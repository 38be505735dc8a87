"""Measures gradients and updates of a few parameters in sampled steps: sizes and directions.

A parameter is copied before a sampled step and compared after it. The update of an element was
rounded away if the element has a nonzero gradient and did not change.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from halfstep.doctor.record import Sample
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.signals.values.retained import Keeping
from halfstep.doctor.tensors.local import local
from halfstep.formats import FORMATS, format_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.optim import Optimizer

    from halfstep.doctor.record.sites import Mark
    from halfstep.doctor.signals.watched import Watched

PARAMETERS = 8
ELEMENTS = 16384
EVERY = 100
FIRST = 64
KEPT = 512
_FEWEST = 64  # elements whose values are counted


def is_sampled(step: int) -> bool:
    """Return whether a step is sampled: steps 1, 2, 4, 8, ... and every hundredth."""
    return step > 0 and (step & (step - 1) == 0 or step % EVERY == 0)


class Samples(Signal):
    """Keeps the first samples, because parameters change most at first, and the latest ones."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._look: Look | None = None
        self._first: list[Sample] = []
        self._latest: deque[Sample] = deque(maxlen=KEPT)

    def before_step(self, optimizer: Optimizer, number: int, mark: Mark | None) -> None:
        """Copy a few parameters before a sampled step."""
        del mark
        registry = self.watched.registry
        if is_sampled(registry.optimizer(optimizer).steps - 1):
            names = {id(each): name for name, each in registry.names().items()}
            loaded = {
                id(each) for module in registry.loaded for each in module.parameters(recurse=False)
            }
            iteration = self.watched.grammar.iteration
            self._look = Look(optimizer, number, iteration, names, loaded)

    def after_step(self, optimizer: Optimizer) -> None:
        """Compare the parameters after a sampled step."""
        del optimizer
        if self._look is not None:
            look, self._look = self._look, None
            self._extend(look.after())

    def _extend(self, samples: Iterable[Sample]) -> None:
        for each in samples:
            (self._first if len(self._first) < FIRST else self._latest).append(each)

    def freeze(self) -> dict[str, Any]:
        """Return the samples."""
        return {"samples": (*self._first, *self._latest)}


class Look:
    """Measures one sampled step of one optimizer.

    Create the object before the step, and call `after` after the step.

    Args:
        optimizer: The optimizer.
        number: Number of the optimizer, from 0.
        iteration: Number of the iteration, from 0.
        names: Names of the parameters by `id`.
        loaded: `id` of the parameters into which a state was loaded.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        number: int,
        iteration: int,
        names: dict[int, str],
        loaded: set[int],
    ) -> None:
        self._number, self._iteration = number, iteration
        self._names, self._loaded = names, loaded
        self._found_inf = getattr(optimizer, "found_inf", None)  # of a fused optimizer
        chosen = [
            each
            for group in optimizer.param_groups
            if isinstance(group.get("lr"), torch.Tensor) or group.get("lr") != 0
            for each in group["params"]
            if each.grad is not None and not each.grad.is_sparse and local(each).numel() > 1
        ]
        stride = max(1, len(chosen) // PARAMETERS)
        looked_at = chosen[::stride][:PARAMETERS]
        self._keeping = Keeping(optimizer, looked_at, _some)
        self._draws = False
        self._before: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = [
            (each, _some(each).clone(), _some(each.grad).clone()) for each in looked_at
        ]

    def after(self) -> list[Sample]:
        """Return the samples of the step, none if it was skipped; waits for the device."""
        if self._found_inf is not None and bool(self._found_inf):
            return []
        self._draws = self._keeping.draws()
        return [self._sample(*each) for each in self._before]

    def _sample(
        self, parameter: torch.Tensor, before: torch.Tensor, gradient: torch.Tensor
    ) -> Sample:
        start, slope = before.double(), gradient.double()
        update = _some(parameter).double() - start
        sizes = slope.abs()
        moved = sizes > 0
        count = int(moved.sum())
        tiny = sizes[moved] < FORMATS["fp16"].tiny

        def share(mask: torch.Tensor) -> float:
            return mask.double().mean().item() if mask.numel() else 0.0

        norm: Any = start.norm().item()
        return Sample(
            iteration=self._iteration,
            optimizer=self._number,
            parameter=self._names.get(id(parameter), ""),
            format=format_name(parameter.dtype),
            gradient_format=format_name(gradient.dtype),
            gradient_zeros=share(~moved),
            gradient_subnormal=share(tiny),
            unchanged=share(update[moved] == 0) if count else 0.0,
            relative_update=update.norm().item() / norm if norm else 0.0,
            retained=self._draws or self._keeping.of(parameter, before),
            norm=norm,
            relative_gradient=slope.norm().item() / norm if norm else 0.0,
            uphill=_cosine(update, slope),
            inward=_cosine(update, -start),
            loaded=id(parameter) in self._loaded,
            size=start.abs().median().item(),
            few_values=4 * _distinct(start) <= 1 and 2 * _distinct(start + update) >= 1,
        )


def _distinct(values: torch.Tensor) -> float:
    """Return the number of different values over that of the elements between 0 and the largest."""
    between = values[(values != 0) & (values.abs() != values.abs().max())]
    return between.unique().numel() / between.numel() if between.numel() >= _FEWEST else 0.5


def _cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    norms = one.norm() * other.norm()
    return (one @ other / norms).item() if norms and norms.isfinite() else 0.0


def _some(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None
    flat = local(tensor).detach().flatten()
    stride = max(1, flat.numel() // ELEMENTS)
    return flat[::stride]
