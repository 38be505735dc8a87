"""Freed memory stays with the process as long as somebody holds it."""

from __future__ import annotations

import resource

import pytest

from halfstep.kernels.native import memory


def faults_of_blocks() -> int:
    """Page faults of asking for 48 MiB, writing to it and giving it back, ten times."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        bytearray(b"\1") * (48 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(memory._glibc() is None, reason="another C library than glibc")
def test_blocks_are_not_asked_of_the_system_again_and_given_back_at_the_end():
    pages = 48 << 20 >> 12
    with memory.freed_memory_kept():
        with memory.freed_memory_kept():
            faults_of_blocks()
        assert faults_of_blocks() < pages
    assert faults_of_blocks() > 5 * pages


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(memory, "_glibc", lambda: None)
    with memory.freed_memory_kept():
        pass
