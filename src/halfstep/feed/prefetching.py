"""Prefetching: copies a batch to the GPU while the previous step is computed.

On CUDA, a separate stream copies batches from page-locked memory, one batch ahead. The compute
stream waits for the copy; the host does not. On other devices batches pass through unchanged.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, TypeVar, cast

import torch
from torch.nn.utils.rnn import PackedSequence

_Batch = TypeVar("_Batch")
_Sent = TypeVar("_Sent")
_Received = TypeVar("_Received")


def prefetch(batches: Iterable[_Batch], device: torch.device | str | int) -> Iterable[_Batch]:
    """Iterate over batches that are on a device, each copied there one batch ahead.

    Args:
        batches: Each batch is a tensor, or a tuple, list or mapping of tensors and other objects;
            the other objects stay unchanged. Use a `DataLoader(pin_memory=True)` for best speed:
            tensors that are not in page-locked memory are copied there first.
        device: The device to copy the batches to.

    Returns:
        On CUDA, an iterator over the copied batches, which can be iterated over once. On any other
        device, `batches` itself: the loop must move the batches if necessary.
    """
    device = torch.device(device)
    if device.type != "cuda":
        return batches
    return _on_cuda(batches, device)


def _on_cuda(batches: Iterable[_Batch], device: torch.device) -> Iterator[_Batch]:
    stream = torch.cuda.Stream(device)

    def send(batch: _Batch) -> tuple[_Batch, torch.cuda.Event]:
        with torch.cuda.stream(stream):
            moved = each_tensor(batch, lambda tensor: _copied(tensor, device))
        return moved, stream.record_event()

    def receive(sent: tuple[_Batch, torch.cuda.Event]) -> _Batch:
        batch, copied = sent
        computing = torch.cuda.current_stream(device)
        computing.wait_event(copied)
        # The memory was allocated on the copy stream. Without `record_stream` the allocator could
        # reuse it there while the compute stream still reads it.
        each_tensor(batch, lambda tensor: tensor.record_stream(computing))
        return batch

    return ahead(batches, send, receive)


def ahead(
    batches: Iterable[_Batch],
    send: Callable[[_Batch], _Sent],
    receive: Callable[[_Sent], _Received],
) -> Iterator[_Received]:
    """Send each batch one batch ahead: yield `receive` of a batch after the next one was sent."""
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


def each_tensor(batch: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """Apply `function` to each tensor of a batch; return the results in the same structure."""
    if isinstance(batch, torch.Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        moved = {name: each_tensor(item, function) for name, item in batch.items()}
        if not isinstance(batch, MutableMapping):
            return cast("Any", type(batch))(moved)
        alike = copy.copy(batch)  # keeps other attributes, such as the factory of a defaultdict
        alike.update(moved)
        return alike
    if isinstance(batch, PackedSequence) or not isinstance(batch, list | tuple):
        return batch  # a packed sequence has a tensor that stays on the CPU
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):  # a named tuple
        return cast("Any", type(batch))(*(each_tensor(item, function) for item in batch))
    return type(batch)(each_tensor(item, function) for item in batch)
