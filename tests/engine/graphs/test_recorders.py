"""Graphs, streams and copies are of the device they are for, also if another GPU is current."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch

from halfstep.engine.graphs.recorders import CudaRecorder
from halfstep.feed import prefetch

if TYPE_CHECKING:
    from collections.abc import Iterator

SECOND = torch.device("cuda:1")


class Gpus:
    """Stands for two GPUs, of which the first is current: what is done on which of them."""

    def __init__(self) -> None:
        self.current = torch.device("cuda:0")
        self.done: list[tuple[str, torch.device]] = []

    def note(self, what: str) -> None:
        self.done.append((what, self.current))

    @contextmanager
    def on(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, device
        yield
        self.current = before


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    found = Gpus()

    class Stream:
        def __init__(self, device: torch.device | None = None) -> None:
            self.device = found.current if device is None else device

        def wait_stream(self, other: Stream) -> None:
            assert other.device == self.device

        def wait_event(self, event: torch.device) -> None:
            assert event == self.device

        def record_event(self) -> torch.device:
            return self.device

    class Graph:
        def capture(self) -> None:
            found.note("capture")

        def replay(self) -> None:
            """Launch on the GPU of the capture, as torch does."""

    @contextmanager
    def graph(captured: Graph, *, stream: Stream, **_: Any) -> Iterator[None]:
        captured.capture()  # torch synchronises the current GPU first
        with found.on(stream.device):
            yield

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: found.on(stream.device))
    monkeypatch.setattr(torch.cuda, "device", found.on)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    return found


def test_a_step_is_recorded_on_the_gpu_of_its_engine(gpus: Gpus) -> None:
    recorder = CudaRecorder(SECOND, [])
    recorder.warm_up(lambda: gpus.note("warm-up"))
    recorder.record(lambda: gpus.note("step"), lambda: None)
    assert gpus.done == [("warm-up", SECOND), ("capture", SECOND), ("step", SECOND)]
    assert gpus.current == torch.device("cuda:0")


def test_batches_are_pinned_and_copied_for_the_gpu_that_gets_them(gpus: Gpus) -> None:
    class Batch(torch.Tensor):
        def is_pinned(self) -> bool:  # type: ignore[override]
            return False

        def pin_memory(self) -> Batch:  # type: ignore[override]
            gpus.note("pin")
            return self

        def to(self, device: torch.device, **_: Any) -> Batch:  # type: ignore[override]
            gpus.note(f"copy to {device}")
            return self

        def record_stream(self, stream: Any) -> None:
            assert stream.device == SECOND

    batches = [torch.ones(2).as_subclass(Batch) for _ in range(2)]
    assert len(list(prefetch(batches, SECOND))) == 2
    assert gpus.done == [("pin", SECOND), ("copy to cuda:1", SECOND)] * 2
