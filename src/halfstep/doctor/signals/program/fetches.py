"""Leaves out the calls of torch that fetch a batch, and remembers the latest batches.

Without workers, a data set calls torch a dozen times per sample, which need no record.
"""

from __future__ import annotations

import weakref
from collections import deque
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from torch.utils.data import default_collate

from halfstep.doctor.internals import fetchers
from halfstep.doctor.signals.data.replaced import Replaced
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.doctor.tensors.nesting import tensors_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from halfstep.doctor.signals.watched import Watched

_BATCHES = 4


class Fetches(Signal):
    """Mutes the listener while a data loader fetches."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._latest: deque[list[weakref.ref[torch.Tensor]]] = deque(maxlen=_BATCHES)

    def has_samples_first(self, tensor: torch.Tensor) -> bool:
        """Return whether a loader has stacked samples to this tensor in a late batch."""
        return any(each() is tensor for batch in self._latest for each in batch)

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of torch's fetchers."""
        for kind in fetchers():
            yield Hook(kind, "fetch", self.watched.here(self._on_fetch))

    def _on_fetch(self, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        listener = self.watched.listener
        fetcher = args[0]  # its second argument are the numbers of the samples
        is_default = fetcher.auto_collation and fetcher.collate_fn is default_collate
        muted = listener.mute()
        try:
            with nullcontext() if is_default else self.watched[Replaced].collating():
                batch = original(*args, **kwargs)
        finally:
            listener.unmute(muted)
        if is_default:
            self._latest.append([weakref.ref(each) for each in tensors_in(batch)])
        return batch
