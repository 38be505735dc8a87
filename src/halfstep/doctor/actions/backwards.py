"""The loop's backward passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.doctor.actions.clearing import Clearing
from halfstep.doctor.actions.measuring import Measuring
from halfstep.doctor.actions.scaling import Scaling
from halfstep.doctor.internals import current_node
from halfstep.doctor.record.sites import Mark, calling_line
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.doctor.signals.values.hooks import Hooks
from halfstep.doctor.tape.tape import autocast_state
from halfstep.doctor.tensors.nesting import tensors_in
from halfstep.formats import format_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.doctor.signals.watched import Watched
    from halfstep.doctor.tape.tape import Multiplier


class Backwards(Signal):
    """Records each backward pass, with its loss and its loss scale.

    Attributes:
        scale: Loss scale of the backward that runs, or ran last; None without one.
    """

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self.scale: Multiplier | None = None

    def hooks(self) -> Iterator[Hook]:
        """Yield the hook of `torch.autograd.backward`."""
        yield Hook(torch.autograd, "backward", self.watched.here(self._on_backward))

    def _on_backward(self, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        if current_node() is not None:  # The inner backward of a reentrant checkpoint.
            return original(*args, **kwargs)
        watched, hooks = self.watched, self.watched[Hooks]
        scale, mark, terms = None, None, []
        tensors = args[0] if args else kwargs.get("tensors")
        with watched.guard.own():
            mark = calling_line()
            watched.begin()
            watched[Clearing].notice_dropped()
            watched.grammar.notice_writes(mark)
            scale = watched.tape.scale_of(tensors)
            terms = watched[Scaling].terms(tensors_in(tensors))
            directions = args[1] if len(args) > 1 else kwargs.get("grad_tensors")
            if scale is None and tensors_in(directions):
                # Others are usually gradients of the backward before, of a batch in parts.
                scale = watched.tape.scale_of(directions) or self.scale
            self._open(tensors, directions, mark, scale)
            watched.tell("on_backward", [] if tensors_in(directions) else tensors_in(tensors))
            self.scale = scale
        with watched.guard.inside(), hooks.examined(on=scale is not None):
            result = original(*args, **kwargs)
        with watched.guard.own():
            losses = tensors_in(tensors)
            watched.registry.note_backward()
            watched.grammar.accumulated(
                mark,
                scale,
                terms,
                autocast=bool(autocast_state()),
                loss_format=format_name(losses[0].dtype) if losses else "",
            )
            for parameter, registered in hooks.limits():
                watched.grammar.limited(registered, parameter)
        return result

    def _open(
        self, tensors: Any, directions: Any, mark: Mark | None, scale: Multiplier | None
    ) -> None:
        entry = self.watched.tape.open("backward", None, (tensors,), {"grad_tensors": directions})
        entry.mark = mark
        losses, measuring = tensors_in(tensors), self.watched[Measuring]
        measuring.loss = None
        if losses:
            entry.value = losses[0].detach()
            if losses[0].numel() == 1:
                scaled = self.watched[Scaling].loss if scale is not None else None
                measuring.loss = entry.value if scaled is None else scaled
        self.watched.tape.close(entry, None, None)
