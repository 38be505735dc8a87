"""Records the loop's own calls of torch, between its calls of models.

A torch function mode sees a few dozen such calls per step: the loss, its division by the number of
micro-batches, a penalty, a change of gradients. The mode is off inside models, backward passes and
optimizers. So it does not disturb compiled code, and it costs nothing per operator.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from types import MethodWrapperType
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from halfstep.doctor.internals import push_function_mode, remove_function_mode
from halfstep.doctor.tape.tape import RandomState, random_state
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ASKING = frozenset({"size", "dim", "stride", "numel", "__len__", "tolist", "item"})
_SILENT = _ASKING | {"_set_grad_enabled", "untyped_storage", "storage_offset"}
_PROFILING = "_record_function"
_CASTS = frozenset({"to", "contiguous", "float", "half", "bfloat16", "double", "cpu", "cuda"})
"""These return their argument itself where there is nothing to do, as for a norm on its device."""
_SETTERS = {Tensor.data: "data", Tensor.requires_grad: "requires_grad"}
REQUIRES = frozenset({"requires_grad", "requires_grad_"})
READS = "grad"
NUMBERS = frozenset({"item", "tolist"})
_NO_WRITES = frozenset({"detach_", "share_memory_", "rename_"})
_IN_PLACE = frozenset({"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__"})
_VIEWS = frozenset((Tensor.T, Tensor.mT, Tensor.H, Tensor.mH, Tensor.real, Tensor.imag))
"""Attributes of a tensor that are operators: reading one adds to the graph."""


def writes(name: str) -> bool:
    """Return whether a function of torch with this name writes in place."""
    return name in _IN_PLACE or (name[-1] == "_" and name[-2:] != "__" and name not in _NO_WRITES)


@dataclass(slots=True)
class Call:
    """A call into torch.

    Attributes:
        function: The function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        random: State of the generators before a call that draws numbers; None for others.
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    random: RandomState | None


def _unheard(*_: Any) -> None:
    """Ignore a call."""


class Listener(TorchFunctionMode):
    """Reports each call into torch and its result.

    Args:
        heard: A function that is called with each call and its result, while the mode is off.
        about: A function that is called before each call that writes in place, that assigns
            `.data` or `.requires_grad` of a tensor, that reads its `.grad`, or that makes numbers
            of Python of it, with the function, its name and the arguments.
    """

    def __init__(
        self,
        heard: Callable[[Call, Any], None] = _unheard,
        about: Callable[[Any, str, tuple[Any, ...]], None] = _unheard,
    ) -> None:
        self.heard, self.about = heard, about
        self._thread = threading.get_ident()
        self._on = False

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if type(func) is MethodWrapperType:  # an attribute is read or set
            if func.__self__ in _SETTERS and func.__name__ == "__set__":
                self.about(func, _SETTERS[func.__self__], args)
            elif func.__self__ is Tensor.grad and func.__name__ == "__get__":
                self.about(func, READS, args)
            result = func(*args, **(kwargs or {}))
            if func.__self__ in _VIEWS:
                self.heard(Call(func, args, kwargs or {}, None), result)
            return result
        name = func.__name__
        if writes(name) or name in NUMBERS:
            self.about(func, name, args)
        before = random_state() if "dropout" in name or "rand" in name else None
        result = func(*args, **(kwargs or {}))
        if name == "__deepcopy__":  # Its memo holds all tensors that were copied before.
            args = (args[0], {})
        if name in _CASTS and args and result is args[0]:
            return result
        if name not in _SILENT and not name.startswith(_PROFILING):
            self.heard(Call(func, args, kwargs or {}, before), result)
        return result

    def start(self) -> None:
        """Start to listen; must run in the thread that created the listener."""
        push_function_mode(self)
        self._on = True

    def stop(self) -> None:
        """Stop listening until `start` is called again."""
        if self._on:
            remove_function_mode(self)
        self._on = False

    def mute(self) -> int | None:
        """Stop listening until `unmute` is called with the returned value; calls can be nested."""
        # While a call is reported, torch itself has removed the mode and will restore it.
        return remove_function_mode(self) if self._on else None

    def unmute(self, muted: int | None) -> None:
        """Listen again, unless an outer `mute` is active.

        Args:
            muted: The value that `mute` has returned: the position of this mode. A context of the
                program, such as `torch.device`, may remove the mode on top as its own.
        """
        if muted is not None and self._on:
            push_function_mode(self, muted)

    @contextmanager
    def unmuted(self) -> Iterator[None]:
        """Listen inside the block, even if the listener is muted."""
        position = self.mute()
        if self._on:
            push_function_mode(self, position or 0)
        try:
            yield
        finally:
            if self._on and position is None:
                remove_function_mode(self)

    @property
    def here(self) -> bool:
        """Whether the listener is on and the current thread is its thread."""
        return self._on and threading.get_ident() == self._thread
