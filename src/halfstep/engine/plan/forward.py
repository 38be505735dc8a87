"""The context of a forward pass: the start of a micro-step, and the contexts of all techniques."""

from __future__ import annotations

from contextlib import ContextDecorator, ExitStack
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
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
        self._begun: list[tuple[RunningStatistics, bool]] = []

    def _recreate_cm(self) -> ForwardPass:
        return ForwardPass(self._assembly, self._begin)

    def __enter__(self) -> None:
        assembly, forward = self._assembly, self._assembly.hooks.forward
        if self._begin:
            self._begin()
            self._begun = [(each, each.begin()) for each in assembly.moving]
        if len(forward) == 1:
            self._entered = forward[0](assembly.device)
            self._entered.__enter__()
        elif forward:
            with ExitStack() as stack:
                for hook in forward:
                    stack.enter_context(hook(assembly.device))
                self._entered = stack.pop_all()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        for statistics, before in self._begun:
            statistics.end(before)
        entered, self._entered, self._begun = self._entered, None, []
        # These contexts may replace an error by another, but do not suppress errors.
        return None if entered is None else entered.__exit__(kind, error, trace)
