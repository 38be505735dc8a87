"""The batches of a program's own loaders, in an order that depends only on seed and epoch.

So a resumed run sees the batches that it has not seen, in the order of the run without a break. For
this, a loader draws from random numbers of its own, and not from those of the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves

from halfstep.errors import UserError
from halfstep.feed.prefetching import each_tensor
from halfstep.train.data.sources.seeding import Stream, derive

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class LoaderBatches:
    """The batches of a loader, as pairs of inputs and targets.

    Args:
        loader: Gives a new iterator over the batches in each epoch.
        argument: The name of the argument with the loader, for messages.
        paired: Whether a batch is a pair (inputs, targets); otherwise both of its pair are the
            whole batch.
        seed: Determines, with the epoch, the random numbers that the loader draws.
        length: Largest number of batches of an epoch; None for all of the loader.

    Attributes:
        images: Number of samples in the data set; None if it is unknown.
    """

    def __init__(
        self, loader: Iterable[Any], argument: str, *, paired: bool, seed: int, length: int | None
    ) -> None:
        self._loader, self._argument, self._paired, self._seed = loader, argument, paired, seed
        self._length = length
        self.images = _samples(loader)

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        assert self._length is not None
        return self._length

    def idle(self, number: int) -> bool:
        """Return False: the run has one process."""
        del number
        return False

    def size(self, targets: Any) -> int:
        """Return the number of samples of a batch; see `samples_of`."""
        return samples_of(targets)

    def epoch(self, number: int = 1, start: int = 0) -> Iterator[tuple[Any, Any]]:
        """Iterate over the batches of one epoch, counted from 1, from batch `start` on."""
        numbers = Stream(self._seed, number)
        for generator in _generators(self._loader):
            generator.manual_seed(derive(self._seed, number))
        for part in _parts(self._loader):
            if callable(getattr(part, "set_epoch", None)):
                part.set_epoch(number)
        with numbers.drawn():
            batches = islice(iter(self._loader), self._length)
        count = 0
        while True:
            with numbers.drawn():
                batch = next(batches, _END)
            if batch is _END:
                break
            count += 1
            if count > start:
                yield self._pair(batch)
        if not count:
            raise UserError(f"{self._argument} gives no batch in epoch {number}")

    def _pair(self, batch: Any) -> tuple[Any, Any]:
        if not self._paired:
            return batch, batch
        if not (isinstance(batch, tuple | list) and len(batch) == 2):
            kind = type(batch).__name__
            of = f" of {len(batch)}" if isinstance(batch, tuple | list | dict) else ""
            raise UserError(
                f"{self._argument} gives a {kind}{of} as a batch; allowed: (inputs, targets), or "
                "any batch if the first parameter of the loss is called `model`: "
                "def loss(model, batch)"
            )
        return batch[0], batch[1]


@dataclass(frozen=True, slots=True)
class LoaderData:
    """The data of a program's own loaders; the methods are those of `Data`."""

    train: Any
    val: Any
    classes: tuple[str, ...] = ()

    def preprocessing(self) -> dict[str, Any]:
        """Return nothing: what the inputs are is known only to the program."""
        return {}

    def prepare(
        self,
        inputs: Any,
        targets: Any,
        *,
        device: torch.device,
        train: bool,
        epoch: int = 1,
        number: int = 0,
    ) -> tuple[Any, Any]:
        """Copy a batch to the device, without waiting for it."""
        del train, epoch, number
        there = moved(inputs, device)
        return there, there if targets is inputs else moved(targets, device)


def moved(batch: Any, device: torch.device) -> Any:
    """Return a batch with its tensors on a device; other objects with a method `to` use that."""
    own = isinstance(batch, PackedSequence) or not isinstance(
        batch, torch.Tensor | dict | list | tuple
    )
    if own and hasattr(batch, "to"):
        return batch.to(device)
    return each_tensor(batch, lambda tensor: tensor.to(device, non_blocking=True))


def samples_of(batch: Any) -> int:
    """Return the length of the first tensor in a batch, which counts as one if it has none."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.ndim else 1
    values = list(batch.values()) if hasattr(batch, "values") else batch
    leaves = (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor) and leaf.ndim)
    return next(map(len, leaves), 1)


_END = object()


def length_of(loader: Any, argument: str) -> int:
    """Return the number of batches of a loader.

    Raises:
        UserError: If the loader has no length, or no batch.
    """
    try:
        length = len(loader)
    except TypeError:
        raise UserError(
            f"{argument} is a {type(loader).__name__} without a length; write "
            "batches_per_epoch=1000, the number of its batches that make an epoch"
        ) from None
    if not length:
        raise UserError(f"{argument} has no batch; give one with at least one")
    return length


def _samples(loader: Any) -> int | None:
    try:
        return len(loader.dataset)
    except (AttributeError, TypeError):
        return None


def _parts(loader: Any) -> list[Any]:
    """Return a loader and its samplers, each once."""
    parts = [loader]
    for part in parts:
        for name in ("sampler", "batch_sampler", "dataset"):
            inner = getattr(part, name, None)
            if inner is not None and all(inner is not known for known in parts):
                parts.append(inner)
    return parts


def _generators(loader: Any) -> list[torch.Generator]:
    generators = [getattr(part, "generator", None) for part in _parts(loader)]
    return [generator for generator in generators if isinstance(generator, torch.Generator)]
