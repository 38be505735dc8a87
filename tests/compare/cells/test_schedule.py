"""What a cell of this machine is started with."""

import json
import sys
import time
from dataclasses import replace

import pytest

from halfstep.compare.cells.directory import prepare
from halfstep.compare.cells.schedule import ThisMachine

TELL = """
import json, os
names = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
print(json.dumps({name: os.environ[name] for name in names if name in os.environ}))
"""


@pytest.fixture
def told(make_grid, monkeypatch):
    """Start a cell in the first slot; return its device and the variables that it sees."""
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(
        "halfstep.compare.cells.schedule.os.sched_getaffinity", lambda _: set(range(16))
    )

    def run(slots, processes=1, threads=None):
        devices = []

        def command(cell, device):
            devices.append(device)
            return [sys.executable, "-c", TELL]

        cell = make_grid(("fp32",), processes=processes).cells[0]
        if threads is not None:
            cell = replace(cell, settings={**cell.settings, "threads": threads})
        prepare(cell, fresh=True)
        running = ThisMachine(slots, command).start(cell, slots[0])
        while running.poll() is None:
            time.sleep(0.01)
        return devices, json.loads((cell.directory / "stdout.log").read_text())

    return run


def test_cores_are_shared_out_to_all_processes_of_all_slots(told, monkeypatch):
    assert told(("cpu",)) == (["cpu"], {})
    assert told(("cpu", "cpu")) == (["cpu"], {"OMP_NUM_THREADS": "8"})
    assert told(("cpu",), 2) == (["cpu"], {"OMP_NUM_THREADS": "8"})
    assert told(("cpu", "cpu"), 4) == (["cpu"], {"OMP_NUM_THREADS": "2"})
    assert told(("cpu",), 64) == (["cpu"], {"OMP_NUM_THREADS": "1"})
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert told(("cpu", "cpu"), 4) == (["cpu"], {"OMP_NUM_THREADS": "3"})


def test_a_cell_has_no_more_threads_than_its_config_says(told):
    assert told(("cpu", "cpu"), threads=1) == (["cpu"], {"OMP_NUM_THREADS": "1"})
    assert told(("cpu", "cpu"), threads=12) == (["cpu"], {"OMP_NUM_THREADS": "8"})
    assert told(("cpu",), threads=1) == (["cpu"], {})


def test_a_slot_of_several_gpus_is_all_that_its_cell_sees(told):
    assert told(("cuda:2,3", "cuda:0,1"), 2) == (
        ["cuda"],
        {"OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": "2,3"},
    )
