"""Batches copied to the device while the step before them is computed.

On CUDA a batch is copied by a stream of its own, from page-locked memory, one batch ahead; the
stream that computes waits for the copy and the host does not. On a CPU there is nothing to copy,
and batches pass through as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, TypeVar, cast

import torch

_Batch = TypeVar("_Batch")
_Sent = TypeVar("_Sent")
_Received = TypeVar("_Received")


def prefetch(batches: Iterable[_Batch], device: torch.device | str | int) -> Iterable[_Batch]:
    """Iterate over batches that are on a device, each copied there one batch ahead.

    Args:
        batches: Tensors, or tuples, lists and mappings of them and of anything else, which stays as
            it is. Best from a `DataLoader(pin_memory=True)`; what is not in page-locked memory is
            copied there first.
        device: Where they are to be.

    Returns:
        An iterable over the batches, to be iterated over once if `batches` is. On any device but
        CUDA it is `batches`, which the loop moves itself, if at all.
    """
    device = torch.device(device)
    if device.type != "cuda":
        return batches
    return _on_cuda(batches, device)


def _on_cuda(batches: Iterable[_Batch], device: torch.device) -> Iterator[_Batch]:
    stream = torch.cuda.Stream(device)

    def send(batch: _Batch) -> tuple[_Batch, torch.cuda.Event]:
        with torch.cuda.stream(stream):
            moved = _each_tensor(batch, lambda tensor: _copied(tensor, device))
        return moved, stream.record_event()

    def receive(sent: tuple[_Batch, torch.cuda.Event]) -> _Batch:
        batch, copied = sent
        computing = torch.cuda.current_stream(device)
        computing.wait_event(copied)
        # Memory of the copying stream may be given out again once it is freed on this one.
        _each_tensor(batch, lambda tensor: tensor.record_stream(computing))
        return batch

    return ahead(batches, send, receive)


def ahead(
    batches: Iterable[_Batch],
    send: Callable[[_Batch], _Sent],
    receive: Callable[[_Sent], _Received],
) -> Iterator[_Received]:
    """Yield what is received of each batch, after the batch behind it was sent."""
    sent: list[_Sent] = []
    for batch in batches:
        sent.append(send(batch))
        if len(sent) > 1:
            yield receive(sent.pop(0))
    for last in sent:
        yield receive(last)


def _copied(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    if tensor.device.type == "cpu" and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def _each_tensor(batch: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """Return a batch of the same structure with `function` of each of its tensors."""
    if isinstance(batch, torch.Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        moved = {name: _each_tensor(each, function) for name, each in batch.items()}
        if not isinstance(batch, MutableMapping):
            return cast("Any", type(batch))(moved)
        alike = copy.copy(batch)  # with what else it has, as the factory of a defaultdict
        alike.update(moved)
        return alike
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):  # a named tuple
        return cast("Any", type(batch))(*(_each_tensor(each, function) for each in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(_each_tensor(each, function) for each in batch)
    return batch
