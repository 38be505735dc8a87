"""Freed memory stays with the process as long as somebody holds it."""

from __future__ import annotations

import resource

import pytest

import warm
from halfstep.kernels.native import memory


def faults_of_blocks() -> int:
    """Page faults of asking for 48 MiB, writing to it and giving it back, ten times."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        bytearray(b"\1") * (48 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def see_faults_while_kept_and_afterwards() -> None:
    pages = 48 << 20 >> 12
    with memory.freed_memory_kept():
        with memory.freed_memory_kept():
            faults_of_blocks()
        assert faults_of_blocks() < pages
    assert faults_of_blocks() > 5 * pages


@pytest.mark.skipif(memory._glibc() is None, reason="another C library than glibc")
def test_blocks_are_not_asked_of_the_system_again_and_given_back_at_the_end():
    # In a process of one thread: where others allocate too, glibc may move on to an arena that
    # holds no block of this size.
    assert warm.run(see_faults_while_kept_and_afterwards) == (0, "", "")


def test_a_library_that_refuses_the_threshold_is_given_the_highest_that_it_allows(monkeypatch):
    """Else the threshold for `mmap` would stay at 128 KiB, as setting any other fixes it."""
    held = {}

    class Library:
        def mallopt(self, parameter, value):
            allowed = parameter != memory._MMAP_THRESHOLD or value <= 1 << 25
            held.update({parameter: value} if allowed else {})
            return int(allowed)

        def malloc_trim(self, _):
            return 1

    monkeypatch.setattr(memory, "_glibc", Library)
    with memory.freed_memory_kept():
        assert held == {memory._MMAP_THRESHOLD: 1 << 25, memory._TRIM_THRESHOLD: 2**31 - 1}
    assert held == memory._GIVEN_BACK


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(memory, "_glibc", lambda: None)
    with memory.freed_memory_kept():
        pass
