"""The settings that a recording has fixed, and the learning rates that it reads from memory."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfstep.engine.assemble import Assembly
    from halfstep.engine.window.window import Window


def settings_of(assembly: Assembly, windows: Sequence[Window]) -> dict[str, Any]:
    """Return the settings on which a recorded step depends, by what they are."""
    groups = [group for window in windows for group in window.optimizer.param_groups]
    states = [
        window.optimizer.state.get(param)
        for window in windows
        for group in window.optimizer.param_groups
        for param in group["params"][:1]
    ]
    return {
        "the parameters of an optimizer": [id(window.params) for window in windows],
        "requires_grad of a parameter": [p.requires_grad for w in windows for p in w.params],
        "the training mode of a layer": [
            module.training for model in assembly.models for module in model.modules()
        ],
        "a setting of an optimizer": [
            id(value) if isinstance(value, torch.Tensor) else value
            for group in groups
            for name, value in group.items()
            if name not in {"params", "lr", "draws"}
        ],
        "the state of an optimizer": [
            id(each) for state in states for each in (state or {}).values()
        ],
    }


class LearningRates:
    """The learning rates of optimizers, as numbers in a recording or as tensors that it reads.

    A rate that does not move is a number in the recording, as it is in an eager step. One that
    moves is written into a tensor before each replay. It is then rounded to fp32, where an eager
    AdamW computes with its fp64 value.

    Args:
        windows: The windows of the optimizers.
        moves: Whether the rates are known to move.
    """

    def __init__(self, windows: Sequence[Window], *, moves: bool) -> None:
        self._windows = windows
        self.move = moves
        self._tensors: list[tuple[dict[str, Any], torch.Tensor]] = []
        self._written: list[float] = []

    @property
    def fixed(self) -> list[Any]:
        """The rates that are numbers in a recording."""
        groups = [group for window in self._windows for group in window.optimizer.param_groups]
        return [group["lr"] for group in groups if not self._is_read(group)]

    def _is_read(self, group: dict[str, Any]) -> bool:
        return isinstance(group["lr"], torch.Tensor) or (
            self.move and bool(group.get("fused", True))
        )

    def forget(self) -> None:
        """Drop the tensors, because a loaded state replaces the groups of an optimizer."""
        self._tensors, self._written = [], []

    @contextmanager
    def in_tensors(self) -> Iterator[None]:
        """Replace the rates that move by tensors, and permit a recording, while one is made."""
        if not self._tensors and self.move:
            self._tensors = [
                (
                    group,
                    torch.tensor(group["lr"], dtype=torch.float32, device=window.params[0].device),
                )
                for window in self._windows
                for group in window.optimizer.param_groups
                if self._is_read(group) and not isinstance(group["lr"], torch.Tensor)
            ]
        self.write()
        groups = [group for window in self._windows for group in window.optimizer.param_groups]
        # torch's Adam lets only such a group be recorded. To a fused kernel it makes no difference.
        asking = [group for group in groups if group.get("capturable") is False]
        try:
            for group, tensor in self._tensors:
                group["lr"] = tensor
            for group in asking:
                group["capturable"] = True
            yield
        finally:
            for (group, _), rate in zip(self._tensors, self._written, strict=True):
                group["lr"] = rate
            for group in asking:
                group["capturable"] = False

    def write(self) -> None:
        """Write the present rates into their tensors."""
        rates = [group["lr"] for group, _ in self._tensors]
        if rates != self._written:
            for (_, tensor), rate in zip(self._tensors, rates, strict=True):
                tensor.fill_(rate)
            self._written = rates
