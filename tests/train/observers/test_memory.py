from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from halfstep.train.observers import memory
from halfstep.train.observers.memory import PeakMemory

CPU = torch.device("cpu")
MIB = 2**20


@contextmanager
def measuring(device):
    measured = PeakMemory(device)
    measured.begin(None)
    yield measured
    measured.end(None)


def rise(size):
    with measuring(CPU) as measured:
        block = torch.ones(size // 4)
        del block
    return measured


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
def test_peak_on_a_cpu_is_the_rise_even_if_the_memory_is_given_back():
    measured = rise(200 * MIB)
    assert measured.kind == "resident-rise"
    assert 180 * MIB < measured.peak() < 300 * MIB
    # An earlier peak does not count towards a later one.
    assert rise(20 * MIB).peak() < 100 * MIB


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_peak_is_sampled_where_the_kernels_mark_cannot_be_reset(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_CLEAR_REFS", tmp_path / "no" / "such")
    with measuring(CPU) as measured:
        block = torch.ones(100 * MIB // 4)
        held = measured.peak()
        del block
    assert 80 * MIB < held < 200 * MIB


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("resettable", [True, False])
def test_a_pause_does_not_count(monkeypatch, tmp_path, resettable):
    if not resettable:
        monkeypatch.setattr(memory, "_CLEAR_REFS", tmp_path / "no" / "such")
    with measuring(CPU) as measured:
        block = torch.ones(100 * MIB // 4)
        measured.peak()  # where it is sampled, this is a sample
        del block
        with measured.paused():
            looked_at = torch.ones(400 * MIB // 4)
            del looked_at
        assert 50 * MIB < measured.peak() < 250 * MIB
        block = torch.ones(300 * MIB // 4)
        assert measured.peak() > 250 * MIB
        del block


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_peak_on_a_gpu_is_what_torch_allocated():
    device = torch.device("cuda")
    with measuring(device) as measured:
        block = torch.ones(64 * MIB, dtype=torch.uint8, device=device)
        del block
    assert measured.kind == "device"
    assert measured.peak() >= 64 * MIB
