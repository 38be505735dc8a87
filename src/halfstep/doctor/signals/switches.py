"""Hears when the loop switches a model between training mode and evaluation mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from halfstep.doctor.signals.signal import Hook, Signal

if TYPE_CHECKING:
    from collections.abc import Iterator


class Switches(Signal):
    """Passes each call of `train` and `eval` on to the modes of the models that it concerns."""

    def hooks(self) -> Iterator[Hook]:
        """Yield the hook of `train`, which `eval` calls, too."""
        yield Hook(nn.Module, "train", self.watched.in_loop(self._on_train))

    def _on_train(self, original: Any, module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        with self.watched.guard.inside():  # Each submodule is switched, too.
            result = original(module, *args, **kwargs)
        with self.watched.guard.own():
            self.watched.registry.note_switch(module)
        return result
