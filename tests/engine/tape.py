"""A tape of a step's operators, which repeats them as a CUDA graph would, on any device.

A recording keeps every operator with the memory of its operands and results and with its Python
numbers. A replay runs the operators again on this memory. No code of the engine, of autograd or of
the model runs. Reading a number on the host ends a recording, as it ends the capture of a graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from halfstep.engine.graphs.recorders import CaptureError, LastOperator, Recorded
from halfstep.kernels.native import fused, half

if TYPE_CHECKING:
    from collections.abc import Callable


class HostReadError(RuntimeError):
    """The host reads a number of the step that is recorded."""


_READS = {"_local_scalar_dense", "is_nonzero", "equal", "nonzero", "item"}


class Tape(TorchDispatchMode):
    """The operators of one run of a function.

    Args:
        run: The function. Compiled C kernels, which a mode does not see, are off while it runs.
    """

    def __init__(self, run: Callable[[], Any]) -> None:
        super().__init__()
        self._calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[torch.Tensor]]] = []
        kept = half.library, fused.library
        half.library = fused.library = lambda: None
        try:
            with self:
                self.result = run()
        finally:
            half.library, fused.library = kept

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func._schema.name.removeprefix("aten::") in _READS:
            raise HostReadError(f"{func._schema.name} is called")
        result = func(*args, **kwargs)
        given = {_memory(each) for each in _tensors((args, kwargs))}
        made = [each for each in _tensors(result) if _memory(each) not in given]
        if made or func._schema.is_mutable:
            self._calls.append((func, args, kwargs, made))
        return result

    def __len__(self) -> int:
        return len(self._calls)

    def replay(self) -> None:
        """Repeat the operators on the memory of the recording."""
        with torch.no_grad():
            for func, args, kwargs, made in self._calls:
                given = {_memory(each) for each in _tensors((args, kwargs))}
                again = func(*args, **kwargs)
                new = [each for each in _tensors(again) if _memory(each) not in given]
                for before, now in zip(made, new, strict=True):
                    before.copy_(now)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(tree) if isinstance(each, torch.Tensor)]


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


class TapeRecorder:
    """Records tapes. Unlike a graph, a tape runs while it is recorded."""

    def __init__(self):
        self.tapes = []

    def warm_up(self, run):
        return run()

    def record(self, run, undo):
        try:
            with LastOperator() as last:
                tape = Tape(run)
        except HostReadError as error:
            undo()
            raise CaptureError(f"{last.name} cannot be recorded ({error})") from error
        self.tapes.append(tape)
        return Recorded(tape.replay, tape.result)
