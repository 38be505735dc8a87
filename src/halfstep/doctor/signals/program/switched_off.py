"""Notes whether a program uses autocast, also inside a model, or whether torch switches it off.

Without a GPU, torch switches off an autocast for CUDA.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.doctor.internals import is_on
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.formats.dtypes import HALVES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.doctor.signals.watched import Watched


class SwitchedOff(Signal):
    """Notes whether any autocast is on, and whether torch has switched one off.

    Attributes:
        on: Whether the program has made an autocast to a half format that is on.
        autocast: Whether torch has switched one off.
    """

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self.on = self.autocast = False

    def hooks(self) -> Iterator[Hook]:
        """Yield the hook of the constructor of `torch.autocast`."""
        yield Hook(torch.autocast, "__init__", self._noting)

    def _noting(self, original: Any) -> Any:
        def init(context: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
            original(context, device_type, *args, **kwargs)
            if self.watched.guard.is_here:
                self.on |= is_on(context) and context.fast_dtype in HALVES
            wanted = args[1] if len(args) > 1 else kwargs.get("enabled", True)
            self.autocast |= (
                bool(wanted) and device_type == "cuda" and not torch.cuda.is_available()
            )

        return init
