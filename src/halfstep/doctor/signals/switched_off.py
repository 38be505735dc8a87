"""Notes an autocast for CUDA that torch switches off, because there is no GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.doctor.signals.signal import Hook, Signal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.doctor.signals.watched import Watched


class SwitchedOff(Signal):
    """Notes whether torch has switched off an autocast.

    Attributes:
        autocast: Whether it has.
    """

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self.autocast = False

    def hooks(self) -> Iterator[Hook]:
        """Yield the hook of the constructor of `torch.autocast`."""
        yield Hook(torch.autocast, "__init__", self._noting)

    def _noting(self, original: Any) -> Any:
        def init(context: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
            original(context, device_type, *args, **kwargs)
            wanted = args[1] if len(args) > 1 else kwargs.get("enabled", True)
            self.autocast |= (
                bool(wanted) and device_type == "cuda" and not torch.cuda.is_available()
            )

        return init
