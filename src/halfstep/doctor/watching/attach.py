"""Wraps the functions and methods of torch that signals hook, and unwraps them.

The program itself need not change. Each wrapper calls the original with the program's arguments.
While torch.compile traces a call, the wrapper only calls the original.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from halfstep.step_observer import observe

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfstep.doctor.signals.signal import Hook
    from halfstep.doctor.watching.engine import EngineObserver
    from halfstep.doctor.watching.receiver import Receiver


class Attachment:
    """Adds the wrappers in its constructor, and removes them in `remove`.

    Args:
        receiver: Receives all events, and provides the hooks.
        observer: Receives the reports of an engine.
    """

    def __init__(self, receiver: Receiver, observer: EngineObserver) -> None:
        self._undo = [_wrapped(hook) for hook in receiver.hooks()]
        self._undo.append(register_optimizer_step_pre_hook(receiver.on_step).remove)
        self._undo.append(register_optimizer_step_post_hook(receiver.on_stepped).remove)
        self._undo.append(observe(observer))
        self._guard = receiver.guard
        _process[0] = receiver

    def remove(self) -> None:
        """Remove all wrappers. Those that other code has wrapped stay, and record nothing."""
        _process[0] = None
        self._guard.leave()
        while self._undo:
            self._undo.pop()()


def _wrapped(hook: Hook) -> Callable[[], None]:
    """Replace what a hook names by its wrapper; return a function that restores the original."""
    owner, name = hook.owner, hook.name
    inherited = name not in vars(owner)
    original = getattr(owner, name) if inherited else vars(owner)[name]
    ours = hook.make(original)
    if callable(ours):
        functools.update_wrapper(ours, original)
    setattr(owner, name, ours)

    def undo() -> None:
        if vars(owner).get(name) is not ours:
            return  # Other code has wrapped ours since: ours stays, and still calls the original.
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, original)

    return undo


_process: list[Receiver | None] = [None]


def _forget_in_child() -> None:
    if (receiver := _process[0]) is not None:
        receiver.guard.leave()


if hasattr(os, "register_at_fork"):
    # Without this, a forked worker of a data loader would continue to listen to no purpose.
    os.register_at_fork(after_in_child=_forget_in_child)
