"""Counts calls of models in evaluation, and results with NaN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.doctor.record import Evaluation
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.tensors.nesting import tensors_in
from halfstep.formats import format_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.doctor.signals.watched import Watched


class Evaluations(Signal):
    """Counts calls of models in evaluation, and results with NaN."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._count = self._bad = 0
        self._first_bad: int | None = None
        self._formats: set[str] = set()
        self._waiting: dict[torch.device, torch.Tensor] = {}

    def take(self, result: Any, iteration: int) -> bool:
        """Count the result of a call.

        Returns:
            Whether this is the first result with NaN. Always False for a result on an accelerator:
            reading it would wait for the device.
        """
        floats = [each for each in tensors_in(result) if each.is_floating_point() and each.numel()]
        self._count += 1
        self._formats |= {format_name(each.dtype) for each in floats}
        flags: dict[torch.device, torch.Tensor] = {}
        for flag in self._flags(floats):
            seen = flags.get(flag.device)
            flags[flag.device] = flag if seen is None else seen | flag
        bad = False
        for device, flag in flags.items():
            if device.type == "cpu":
                bad = bool(flag)
            else:
                count = self._waiting.get(device)
                self._waiting[device] = flag.long() if count is None else count + flag
        self._bad += bad
        first = bad and self._first_bad is None
        if first:
            self._first_bad = iteration
        return first

    @staticmethod
    def _flags(floats: list[torch.Tensor]) -> Iterator[torch.Tensor]:
        for each in floats:
            if each.layout is torch.strided:
                yield each.detach().sum(dtype=torch.float32).isnan()

    def freeze(self) -> dict[str, Any]:
        """Return the counts, including results on accelerators; waits for the device."""
        late = sum(int(each) for each in self._waiting.values())
        formats = tuple(sorted(self._formats))
        return {"evaluation": Evaluation(self._count, self._bad + late, self._first_bad, formats)}
