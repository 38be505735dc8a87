"""The scales of FP8 tensors: by their own largest values, or by those of past steps."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from halfstep.mechanisms.products.quantised import Role

HISTORY = 16
"""The number of past steps whose largest values determine a delayed scale."""

_noting = threading.Lock()
"""A lock for `DelayedScales`: the replicas of a DataParallel model share it between threads."""


class Scales(Protocol):
    """Determines the scales of the tensors of one layer."""

    def largest(self, role: Role, value: torch.Tensor, *, training: bool) -> torch.Tensor:
        """Return the magnitude that becomes the largest FP8 number after scaling.

        With dynamic scaling, it is the largest magnitude of `value`.
        """


class DynamicScales:
    """Scales each tensor by its own largest absolute value."""

    def largest(self, role: Role, value: torch.Tensor, *, training: bool) -> torch.Tensor:
        """Return the largest absolute value of `value`."""
        del role, training
        return _largest(value)


class DelayedScales:
    """Scales a tensor by the largest values of past steps, so that rounding needs no extra read.

    The scales do not change within a step, so activation checkpointing recomputes the same values.
    """

    def __init__(self) -> None:
        self._past: dict[str, torch.Tensor] = {}
        self._seen: dict[str, torch.Tensor] = {}

    def largest(self, role: Role, value: torch.Tensor, *, training: bool) -> torch.Tensor:
        """Return the largest absolute value of past steps, or of `value` if there are none."""
        now = _largest(value)
        if training:
            with _noting:
                seen = self._seen.get(role)
                self._seen[role] = now if seen is None else torch.maximum(seen, now.to(seen.device))
        past = self._past.get(role)
        if past is None:
            return now
        known = past.max().to(now.device)
        return torch.where(known > 0, known, now)

    def advance(self) -> None:
        """End a step: move its largest values into the history.

        An inf or NaN would make every later scale useless, so the newest past value replaces it.
        """
        for role, seen in self._seen.items():
            past = self._past.get(role)
            if past is None:
                past = seen.new_zeros(HISTORY)
            seen = seen.to(past.device)  # noqa: PLW2901  (a replica's, which was the first)
            newest = torch.where(seen.isfinite(), seen, past[0])
            self._past[role] = torch.cat([newest[None], past[:-1]])
        self._seen.clear()

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return the values of past steps and of the present step, as plain data."""
        return {"past": dict(self._past), "seen": dict(self._seen)}

    def load(self, state: dict[str, dict[str, torch.Tensor]]) -> None:
        """Load the result of `state`."""
        self._past, self._seen = dict(state["past"]), dict(state["seen"])


def _largest(value: torch.Tensor) -> torch.Tensor:
    if not value.numel():
        return value.new_zeros((), dtype=torch.float32)
    return value.detach().abs().amax().float()
