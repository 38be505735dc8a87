"""Which numbers the loop writes over some elements of whole numbers, such as a mask token.

Masked language models replace tokens of their input in this way. The replay of the last step, which
begins with the input as it is then, asks for them. Often, a collate function does so: it is heard
in the first batches, as the numbers stay the same.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from halfstep.doctor.record.sites import calling_line
from halfstep.doctor.signals.signal import Signal

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from halfstep.doctor.signals.signal import Heard

_PLACES = {  # of the number among the arguments
    **dict.fromkeys(("masked_fill", "masked_fill_", "__setitem__"), (2,)),
    **dict.fromkeys(("index_fill", "index_fill_", "scatter", "scatter_"), (3,)),
    "where": (1, 2),
}
_MOST = 16
_FIRST = 2  # batches
_LARGEST = 2**18  # elements of a tensor that is kept
_Number = int | torch.Tensor


class Replaced(Signal):
    """Remembers the latest of these numbers; those of tensors are read when they are asked for."""

    def __init__(self, watched: Any) -> None:
        super().__init__(watched)
        self._known: dict[tuple[int, Any], tuple[_Number, torch.Tensor | None]] = {}
        self._collated: set[int] = set()
        self._batches = 0

    def collating(self) -> AbstractContextManager[Any]:
        """Return a context for a collate function, which hears it in the first batches."""
        self._batches += 1
        return _Collating(self._collated) if self._batches <= _FIRST else nullcontext()

    def on_call(self, heard: Heard) -> None:
        """Note a number that is written over elements of a tensor."""
        made, numbers = _numbers(heard.name, heard.call.args, heard.call.kwargs, heard.result)
        for value in numbers[:1]:
            others = (each for each in heard.given if each is not value)
            before = next((each for each in others if each.dtype != torch.bool), None)
            is_kept = before is not made and made.numel() <= _LARGEST
            key = made.numel(), value if type(value) is int else calling_line()
            self._known.pop(key, None)
            self._known[key] = value, before if is_kept else None
        while len(self._known) > _MOST:
            del self._known[next(iter(self._known))]

    def over(self, count: int) -> list[tuple[int, torch.Tensor | None]]:
        """Return the numbers that were written into tensors with as many elements.

        Returns:
            Each with the tensor before; None if it was changed in place.
        """
        found = [pair for (size, _), pair in self._known.items() if size == count]
        collated = [(value, None) for value in self._collated]
        return [*((int(value), before) for value, before in found), *collated]


class _Collating(TorchFunctionMode):
    """Collects the numbers that a collate function writes.

    Args:
        found: To these, the numbers are added.
    """

    def __init__(self, found: set[int]) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in _PLACES and len(self._found) < _MOST:
            self._found.update(map(int, _numbers(name, args, kwargs or {}, result)[1][:1]))
        return result


def _numbers(name: str, args: Any, kwargs: Any, result: Any) -> tuple[Any, list[_Number]]:
    """Return the tensor of whole numbers that a function changes, and what it writes there."""
    made = result if isinstance(result, torch.Tensor) else args[0] if args else None
    if name not in _PLACES or not isinstance(made, torch.Tensor):
        return None, []
    if made.is_floating_point() or made.is_complex():
        return None, []
    given = [args[at] for at in _PLACES[name] if at < len(args)]
    return made, [each for each in given or kwargs.values() if _is_number(each)]


def _is_number(value: Any) -> bool:
    """Return whether a value is a whole number, also one of a tensor."""
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and value.dtype in (torch.int64, torch.int32)
    return type(value) is int
