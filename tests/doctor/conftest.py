"""What tests of the watch share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from halfstep.doctor.signals.values import numbers

if TYPE_CHECKING:
    import torch


class Arrival:
    """Stands for the event after which a copy is on the host."""

    def __init__(self, device: torch.device) -> None:
        del device

    def synchronize(self) -> None:
        pass


@pytest.fixture
def _processor_runs_behind(monkeypatch):
    """The processor as a device that works while the host goes on."""
    monkeypatch.setattr(numbers, "runs_behind", lambda device: True)
    monkeypatch.setattr(numbers, "recorded_event", Arrival)
