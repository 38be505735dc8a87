"""The forward of a step, which can run again with other inputs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfstep.doctor.replay.influence.forward import Change, Forward, Operator, Trains
    from halfstep.doctor.replay.replay import Replayer

SECONDS = 0.5
"""The CPU time that the first run may take."""
SHARE, FEWEST, MOST = 0.05, 0.3, 1.0
"""The share of the program's CPU time that all other runs may take, and its limits in seconds."""


class Forwards:
    """The forward of a step, which can run with other inputs.

    Args:
        replayer: Runs the step.

    Attributes:
        base: The operators of the forward as it is.
        inputs: The inputs of its models, by key.
        calls: The calls of library functions inside of its modules, see `Forward`.
        losses: The numbers of the operators that made the losses on which it calls backward.
        ends: These losses, with their graphs.
        trainable: The names of the parameters that require gradients, by key of their storage.
        note: The reason why they are unknown; "" if they are known.
    """

    def __init__(self, replayer: Replayer) -> None:
        self._replayer = replayer
        started = time.process_time()
        self._trains: Trains = "nothing"
        mode = replayer.forward_mode()
        outcome = replayer.forward(mode, {})
        if outcome.note or not any(each.requires_grad for each in outcome.losses):
            # Some models make no loss in evaluation mode, or only predict.
            other = replayer.forward_mode()
            result = replayer.forward(other, {}, "own")
            if not result.note:
                mode, outcome, self._trains = other, result, "own"
        self.base: list[Operator] = mode.operators
        self.inputs = mode.inputs
        self.calls = mode.calls
        self.losses = [mode.maker(each) for each in outcome.losses]
        self.ends = outcome.losses
        self.trainable = replayer.trainable
        self.note = outcome.note
        self._mode = mode
        self._in_training: Forward | None = None
        self._left = min(MOST, max(FEWEST, SHARE * time.process_time()))
        if time.process_time() - started > SECONDS:
            self.note = self.note or "the forward takes too long"

    def changed(self, others: Mapping[Any, torch.Tensor]) -> Sequence[list[torch.Tensor]] | None:
        """Return where the result of each operator changes with other inputs.

        Args:
            others: The other inputs, by the keys of those that they replace.

        Returns:
            For each operator, a mask for each tensor in its result; None if the runs cannot be
            compared.
        """
        return self._compared(self._mode, others, self._trains)

    def changed_at(self, change: Change) -> Sequence[list[torch.Tensor]] | None:
        """Return the same as `changed`, with other arguments of one operator."""
        return self._compared(self._mode, {}, self._trains, change)

    def changed_in_training(
        self, others: Mapping[Any, torch.Tensor]
    ) -> Sequence[list[torch.Tensor]] | None:
        """Return the same as `changed`, with the modules in the modes of the step."""
        self.in_training()
        base = self._in_training
        return None if base is None else self._compared(base, others, "all")

    def in_training(self) -> list[Operator]:
        """Return the operators of the forward in the modes of the step; none without time."""
        if self._in_training is None:
            if self._left <= 0:
                return []
            started = time.process_time()
            mode = self._replayer.forward_mode()
            outcome = self._replayer.forward(mode, {}, "all")
            self._left -= time.process_time() - started
            if outcome.note:
                return []
            self._in_training = mode
        return self._in_training.operators

    def _compared(
        self,
        base: Forward,
        others: Mapping[Any, torch.Tensor],
        trains: Trains,
        change: Change | None = None,
    ) -> Sequence[list[torch.Tensor]] | None:
        if self._left <= 0:
            return None
        started = time.process_time()
        mode = self._replayer.forward_mode(base, change)
        alike = {key: _laid_out(each, self.inputs.get(key)) for key, each in others.items()}
        outcome = self._replayer.forward(mode, alike, trains)
        self._left -= time.process_time() - started
        is_whole = not outcome.note and len(mode.changed) == len(base.operators)
        return mode.changed if is_whole else None


def _laid_out(tensor: torch.Tensor, like: torch.Tensor | None) -> torch.Tensor:
    """Return a tensor with the strides of another one, such as a slice, which a view depends on."""
    if like is None or tensor.shape != like.shape or tensor.stride() == like.stride():
        return tensor
    if 0 in like.stride():  # Several elements share memory.
        return tensor
    return torch.empty_strided(
        like.shape, like.stride(), dtype=tensor.dtype, device=tensor.device
    ).copy_(tensor)
