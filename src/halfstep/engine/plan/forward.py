"""The context of a forward pass: the start of a micro-step, and the contexts of all techniques."""

from __future__ import annotations

from contextlib import ContextDecorator, ExitStack
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from halfstep.engine.assemble import Assembly
    from halfstep.engine.closing.statistics import RunningStatistics


class ForwardPass(ContextDecorator):
    """The context of one forward pass. It may be nested, and may be used as a decorator.

    A class is faster than a generator function, and each micro-step enters this context.

    Args:
        assembly: The engine's parts.
        begin: Called first, if the forward pass is part of a training step; None in evaluation.
    """

    def __init__(self, assembly: Assembly, begin: Callable[[], None] | None = None) -> None:
        self._assembly = assembly
        self._begin = begin
        self._entered: Any = None

    def _recreate_cm(self) -> ForwardPass:
        return ForwardPass(self._assembly, self._begin)

    def __enter__(self) -> None:
        assembly, forward = self._assembly, self._assembly.hooks.forward
        statistics: Sequence[RunningStatistics] = ()
        if self._begin:
            self._begin()
            statistics = assembly.moving
        if not (forward or statistics):
            return
        if len(forward) == 1 and not statistics:
            self._entered = forward[0](assembly.device)
            self._entered.__enter__()
        else:
            with ExitStack() as stack:
                for each in statistics:
                    stack.enter_context(each.step_going_on())
                for hook in forward:
                    stack.enter_context(hook(assembly.device))
                self._entered = stack.pop_all()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        entered, self._entered = self._entered, None
        # These contexts may replace an error by another, but do not suppress errors.
        return None if entered is None else entered.__exit__(kind, error, trace)
