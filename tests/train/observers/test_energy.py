"""The energy of a GPU by its driver's counter, with a stand-in for the driver's library."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from halfstep.train.observers.energy import Energy

GPU = torch.device("cuda")


class DriverError(Exception):
    """What NVML raises."""


def driver_with(millijoules):
    """What of NVML is used; the counters are by the UUID of a GPU."""

    def energy(uuid):
        if uuid not in millijoules:
            raise DriverError("Not Supported")
        return millijoules[uuid]

    return SimpleNamespace(
        NVMLError=DriverError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetTotalEnergyConsumption=energy,
    )


@pytest.fixture
def millijoules(monkeypatch):
    """The counter of the one GPU."""
    counters = {"GPU-0a1b": 5_000}
    monkeypatch.setitem(sys.modules, "pynvml", driver_with(counters))
    properties = SimpleNamespace(uuid="0a1b")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    return counters


def test_what_is_used_from_the_start_on_is_counted_in_joules(millijoules):
    energy = Energy(GPU)
    millijoules["GPU-0a1b"] += 12_500
    assert energy.joules() == pytest.approx(12.5)


def test_a_gpu_without_a_counter_says_nothing(millijoules):
    millijoules.clear()
    assert Energy(GPU).joules() is None


def test_without_the_library_nothing_is_said(millijoules, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Energy(GPU).joules() is None


def test_other_devices_are_not_asked():
    assert Energy(torch.device("cpu")).joules() is None
