"""Clipping of gradients before an optimizer step, by the limit that the caller has chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfstep.kernels import gradients

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch


@dataclass(frozen=True, slots=True)
class Clipping:
    """A limit for the gradients of each optimizer; at most one is set.

    Attributes:
        norm: Largest 2-norm over all gradients of one optimizer.
        value: Largest absolute value of an element.
        adaptive: Largest ratio of gradient norm to weight norm for each output unit (AGC).

    Raises:
        ValueError: If more than one limit is set, or one is not positive.
    """

    norm: float | None = None
    value: float | None = None
    adaptive: float | None = None

    def __post_init__(self) -> None:
        given = {
            f"clip_{name}": limit
            for name, limit in (
                ("norm", self.norm),
                ("value", self.value),
                ("adaptive", self.adaptive),
            )
            if limit is not None
        }
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are both set; allowed: one of them")
        for name, limit in given.items():
            if not limit > 0:
                raise ValueError(f"{name} is {limit!r}; allowed: a number above 0")

    def __bool__(self) -> bool:
        return not (self.norm is None and self.value is None and self.adaptive is None)

    def apply(
        self,
        params: Sequence[torch.Tensor],
        grads: Sequence[torch.Tensor],
        total_norm: torch.Tensor,
        full_precision: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        """Clip gradients in place.

        Args:
            params: Parameters that have a gradient.
            grads: The local part of each gradient; for a sparse gradient, its values.
            total_norm: 2-norm over all gradients, a scalar tensor.
            full_precision: Returns the most precise value of a parameter.
        """
        if self.norm is not None:
            gradients.clip_norm(grads, self.norm, total_norm)
        elif self.value is not None:
            gradients.clip_value(grads, self.value)
        elif self.adaptive is not None:
            for param in params:
                gradients.clip_adaptively(param, full_precision(param).detach(), self.adaptive)
