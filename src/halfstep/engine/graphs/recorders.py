"""Records what a function launches on a GPU as a CUDA graph, which a replay launches at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfstep.mechanisms.technique import Technique


class Recorded(NamedTuple):
    """A recording that has run once: `replay()` runs it again on the memory of `result`."""

    replay: Callable[[], None]
    result: Any


class Recorder(Protocol):
    """Records functions of one engine, whose recordings are replayed in one order."""

    def warm_up(self, run: Callable[[], Any]) -> Any:
        """Run a function as it will be recorded, so that libraries and caches are ready."""

    def record(self, run: Callable[[], Any], undo: Callable[[], None]) -> Recorded:
        """Record a function. What it does has happened once when this returns.

        Args:
            run: The function.
            undo: Undoes what a failed recording has done to objects of Python.

        Raises:
            CaptureError: If the function does something that cannot be recorded. It has then
                changed nothing.
        """


class CaptureError(RuntimeError):
    """A step cannot be recorded: an operator needs the host."""


class CudaRecorder:
    """Records CUDA graphs that share one pool of memory.

    Args:
        device: The GPU.
        techniques: The techniques of the engine, which may have random generators of their own.
    """

    def __init__(self, device: torch.device, techniques: Sequence[Technique]) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._techniques = techniques

    def warm_up(self, run: Callable[[], Any]) -> Any:
        """Run a function on the stream on which graphs are recorded."""
        here = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            result = run()
        here.wait_stream(self._stream)
        return result

    def record(self, run: Callable[[], Any], undo: Callable[[], None]) -> Recorded:
        """Capture a graph, and launch it once; while it is captured, the GPU does nothing."""
        try:
            graph, result = self._captured(run)
        except Exception as error:
            undo()
            with LastOperator() as last:
                try:
                    self._captured(run)
                except Exception:  # noqa: BLE001  # the same error again
                    undo()
            raise CaptureError(f"{last.name} cannot be recorded ({error})") from error
        graph.replay()
        return Recorded(graph.replay, result)

    def _captured(self, run: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
        graph = torch.cuda.CUDAGraph()
        for technique in self._techniques:
            for generator in technique.generators:
                if generator.device == self._stream.device:
                    graph.register_generator_state(generator)
        # Other threads, such as one that pins batches, may go on using the GPU.
        with (
            torch.cuda.device(self._stream.device),
            torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ),
        ):
            result = run()
        return graph, result


class LastOperator(TorchDispatchMode):
    """Knows the name of the operator that ran last."""

    name = "an operator"

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's has no types

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Note the name, and run the operator."""
        del types
        self.name = str(func)
        return func(*args, **(kwargs or {}))


def new_recorder(
    device: torch.device, techniques: Sequence[Technique]
) -> Callable[[], Recorder] | None:
    """Return what creates a recorder for steps on a device; None if nothing records there."""
    if device.type != "cuda":
        return None
    return lambda: CudaRecorder(device, techniques)
