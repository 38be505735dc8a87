"""Averages of the weights (EMA, SWA), always in fp32.

An average is not updated by a skipped step; the device decides this without synchronization.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from halfstep.engine.processes.shards import as_part_of, local
from halfstep.optim.foreach import by_format, in_chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn


@dataclass(frozen=True, slots=True)
class EMA:
    """Exponential moving average of the weights, updated by each step that is not skipped.

    The update is `average = decay * average + (1 - decay) * weights`.

    Attributes:
        decay: Between 0 and 1; a larger value averages over more steps.
    """

    decay: float = 0.9999

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1:
            raise ValueError(
                f"EMA decay is {self.decay!r}; allowed: between 0 and 1, such as 0.999"
            )

    def weight(self, taken: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        """Return the weight of the current parameters in the new average, as a scalar tensor."""
        del steps
        return torch.full_like(taken, 1 - self.decay)


@dataclass(frozen=True, slots=True)
class SWA:
    """Stochastic weight averaging: the mean of the weights at intervals of `every` steps.

    Izmailov et al., "Averaging Weights Leads to Wider Optima" (arXiv:1803.05407), equation 2.

    Attributes:
        start: Number of steps before averaging begins. Skipped steps do not count.
        every: Number of steps from one averaged set of weights to the next.
    """

    start: int = 0
    every: int = 1

    def __post_init__(self) -> None:
        if self.start < 0 or self.every < 1:
            raise ValueError(
                f"SWA(start={self.start!r}, every={self.every!r}); allowed: start 0 or more, "
                "every 1 or more"
            )

    def weight(self, taken: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        """Return the weight of the current parameters in the new mean, as a scalar tensor.

        It is 1/n for the n-th set of weights that is averaged, and 0 after a step whose weights are
        not averaged.
        """
        due = (steps > self.start) & ((steps - self.start) % self.every == 0)
        return torch.where(due, 1 / (taken + 1), 0.0)


def checked_rule(rule: EMA | SWA | None) -> EMA | SWA | None:
    """Check that `rule` is an `EMA`, an `SWA` or None, and return it.

    Raises:
        TypeError: If it is anything else.
    """
    if rule is not None and not isinstance(rule, (EMA, SWA)):
        raise TypeError(f"average is {rule!r}; allowed: EMA(0.999), SWA(start=1000) or None")
    return rule


class WeightAverage:
    """The average of the weights that one optimizer updates.

    Buffers are not averaged: evaluation uses the current ones. If weights are sharded, each process
    averages its shard.

    Args:
        rule: `EMA` or `SWA`.
        params: The model's parameters; the floating-point ones are averaged, in fp32.
        full_precision: Returns the most precise value of a parameter.

    Attributes:
        weights: The average of each parameter: the local part, fp32.
    """

    def __init__(
        self,
        rule: EMA | SWA,
        params: Sequence[torch.Tensor],
        full_precision: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        self._rule = rule
        self._full_precision = full_precision
        self.weights = {
            param: self._exact(param).clone() for param in params if param.is_floating_point()
        }
        self._started = False
        self._taken = torch.zeros((), device=params[0].device)
        self._steps = torch.zeros_like(self._taken)

    def cover(self, params: Sequence[torch.Tensor]) -> None:
        """Start averages of added parameters; at the first call, restart all from current weights.

        So weights that were loaded before the first step are averaged, not the initial ones.
        """
        for param in params:
            if param.is_floating_point() and (param not in self.weights or not self._started):
                self.weights[param] = self._exact(param).clone()
        self._started = True

    @torch.no_grad()
    def update(self, found_inf: torch.Tensor | None) -> None:
        """Update the average after a step.

        Args:
            found_inf: Scalar, 1 if the step was skipped, else 0; None if it cannot be skipped.
        """
        stepped = (
            torch.ones_like(self._steps)
            if found_inf is None
            else 1 - found_inf.to(self._steps.device)
        )
        self._steps += stepped
        weight = self._rule.weight(self._taken, self._steps) * stepped
        self._taken += weight > 0
        param_of = {average: param for param, average in self.weights.items()}
        for alike in by_format(list(param_of)):
            for averages in in_chunks(alike):
                ahead = [self._exact(param_of[average]) for average in averages]
                moves = torch._foreach_sub(ahead, averages)  # noqa: SLF001  # stable since 1.9
                torch._foreach_mul_(moves, weight.to(averages[0].device))
                torch._foreach_add_(averages, moves)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the model's weights by the averages, in its format; restore them at the end."""
        params = [local(param).detach() for param in self.weights]
        kept = [param.clone() for param in params]
        torch._foreach_copy_(params, list(self.weights.values()))
        try:
            yield
        finally:
            torch._foreach_copy_(params, kept)

    def state_dict(self) -> dict[str, Any]:
        """Return the averages, in the order of the parameters, and the counts of steps."""
        return {
            "weights": [as_part_of(mean.clone(), param) for param, mean in self.weights.items()],
            "taken": self._taken.clone(),
            "steps": self._steps.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that `state_dict` returned."""
        self._started = True
        for average, saved in zip(self.weights.values(), state["weights"], strict=True):
            average.copy_(local(saved))
        self._taken.copy_(state["taken"])
        self._steps.copy_(state["steps"])

    def _exact(self, param: torch.Tensor) -> torch.Tensor:
        """Return the local part of the most precise value of a parameter, in fp32."""
        return local(self._full_precision(param)).detach().float()


def averaged_state_dict(
    model: nn.Module, averages: Sequence[WeightAverage]
) -> dict[str, torch.Tensor]:
    """Return the fp32 state dict of `model` with averages instead of its current weights.

    Raises:
        ValueError: If there are no averages.
    """
    if not averages:
        raise ValueError("this engine keeps no average; write Engine(..., average=EMA(0.999))")
    weights = {param: mean for each in averages for param, mean in each.weights.items()}
    state: dict[str, torch.Tensor] = model.state_dict()
    for name, param in model.named_parameters(remove_duplicate=False):
        if param in weights:
            state[name] = as_part_of(weights[param], param)
    return state
