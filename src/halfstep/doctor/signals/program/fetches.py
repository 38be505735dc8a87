"""Leaves out the calls of torch that fetch a batch.

Without workers, a data set calls torch a dozen times per sample, which need no record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfstep.doctor.internals import fetchers
from halfstep.doctor.signals.signal import Hook, Signal

if TYPE_CHECKING:
    from collections.abc import Iterator


class Fetches(Signal):
    """Mutes the listener while a data loader fetches."""

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of torch's fetchers."""
        for kind in fetchers():
            yield Hook(kind, "fetch", self.watched.here(self._on_fetch))

    def _on_fetch(self, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        listener = self.watched.listener
        muted = listener.mute()
        try:
            return original(*args, **kwargs)
        finally:
            listener.unmute(muted)
