"""An error about non-finite gradients that the program catches, after which it makes no step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from halfstep.doctor.record.called import MESSAGE, Ending
from halfstep.doctor.record.sites import calling_line, site
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from halfstep.doctor.record import Fact
    from halfstep.doctor.record.sites import Mark
    from halfstep.doctor.signals.watched import Watched

_GOES_ON = frozenset({"step", "scaler step", "drop", "update"})


@dataclass(frozen=True, slots=True)
class Caught:
    """The last error of torch's clipping or backward.

    Attributes:
        error: The error; its kind is "" without one, or if the loop went on to a step.
    """

    signal: ClassVar[str] = "caught"
    error: Ending = Ending()  # frozen


class Catching(Signal):
    """Notes the errors that leave torch's clipping and backward."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._error = Ending()

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of the functions that raise errors for non-finite gradients."""
        for owner, name in (
            (nn.utils, "clip_grad_norm_"),
            (nn.utils.clip_grad, "clip_grad_norm_"),
            (torch.autograd, "backward"),
        ):
            yield Hook(owner, name, self.watched.here(self._on_call))

    def _on_call(self, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except RuntimeError as error:
            with self.watched.guard.own():
                line = site(calling_line())
                self._error = Ending(type(error).__name__, str(error)[:MESSAGE], line)
            raise

    def on_event(self, kind: str, mark: Mark | None, facts: Mapping[str, Fact]) -> None:
        """Forget an error after which the loop goes on."""
        del mark, facts
        if kind in _GOES_ON:
            self._error = Ending()

    def freeze(self) -> dict[str, Any]:
        """Return the last error."""
        return {Caught.signal: Caught(self._error)}
