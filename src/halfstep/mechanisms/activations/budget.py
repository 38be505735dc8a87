"""Compressed activations with bits that are chosen per module, to fit a memory budget."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from halfstep.mechanisms.activations.allocation import allocate
from halfstep.mechanisms.activations.sensitivity import Meter
from halfstep.mechanisms.activations.technique import CompressedActivations
from halfstep.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch.optim import Optimizer

_logger = logging.getLogger(__name__)

_WHILE_MEASURED = 8
"""Bits of the first step: they add hardly any noise, and take at most half of the memory."""


class BudgetedActivations(CompressedActivations):
    """Measures in the first step how much noise each module causes, then chooses its bits.

    Args:
        budget: The part of the exact bytes that the compressed tensors may take, from 0 to 1.
        layers: Patterns of module names, with given bits for the modules that match.
        group: Number of elements that share quantization levels.
        seed: Seed of the stochastic rounding.

    Raises:
        ValueError: In the first step, after its backward, if 2 bits in every module exceed the
            budget.
    """

    def __init__(
        self, budget: float, layers: Mapping[str, int | None], *, group: int, seed: int
    ) -> None:
        super().__init__({"*": _WHILE_MEASURED, **layers}, group=group, seed=seed)
        self._budget = budget
        self._chosen: dict[str, int] = {}
        self._device = torch.device("cpu")

    @contextmanager
    def forward(self, device: torch.device) -> Iterator[None]:
        """Compress saved tensors, and measure them as long as the bits are not chosen."""
        self._device = device
        self._choose()
        listening: AbstractContextManager[None] = nullcontext()
        if torch.is_grad_enabled():
            meter = None if self._chosen else Meter(self._store.group, self._free_module)
            self._operators.meter = meter
            listening = self._store.heard_by(meter.saved) if meter else listening
        with listening, super().forward(device):
            yield

    def before_step(self, optimizer: Optimizer, params: Sequence[torch.Tensor]) -> None:
        """Choose the bits before the step, so that a checkpoint after the step contains them."""
        del optimizer, params
        self._choose()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the base class and the chosen bits."""
        return {**super().state_dict(), "chosen": dict(self._chosen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of the base class and the chosen bits."""
        super().load_state_dict(state)
        self._chosen = dict(state["chosen"])

    def _bits(self, module: str | None) -> int | None:
        return self._chosen.get(module or "") or super()._bits(module)

    def _is_followed(self, pattern: str, around: str | None) -> bool:
        del pattern, around
        return True

    def _free_module(self) -> str | None:
        module = self._innermost()
        return module if module and self._patterns[module] == "*" else None

    def _choose(self) -> None:
        """Choose the bits, if a backward pass has completed the measurement."""
        meter = self._operators.meter
        if meter is None or not meter.has_gradients:
            return
        self._operators.meter = None
        found: list[Any] = [meter.measured(), meter.fixed()]
        if distributed.is_available() and distributed.is_initialized():
            # All processes use the measurement of rank 0, so that they choose the same bits.
            distributed.broadcast_object_list(found, device=self._device)
        measured, fixed = found
        if not measured:  # a gradient overflowed: the next step measures again
            return
        self._chosen = allocate(measured, budget=self._budget, group=self._store.group, fixed=fixed)
        _logger.info(
            "activation_budget=%s: %s",
            self._budget,
            ", ".join(
                f"{counted(n, 'module')} in {counted(b, 'bit')}"
                for b, n in sorted(Counter(self._chosen.values()).items())
            ),
        )
