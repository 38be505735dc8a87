"""Finds where a traced step rounds away what it computes in half precision.

Two places lose it for good. A buffer that adds up numbers in a half format stays as it is as soon
as they are less than half the distance to its next number. And a product, a quotient or a cast in
a backward that the program has written itself gives 0 in fp16 where its exact result is smaller
than the smallest fp16 number: the loss scale, which torch multiplies the loss with, may not have
reached it yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.doctor.record.replayed import Rounded
from halfstep.doctor.record.sites import site
from halfstep.doctor.replay.memory import storage_key
from halfstep.formats import format_name
from halfstep.formats.dtypes import HALVES

if TYPE_CHECKING:
    from halfstep.doctor.bundle.caller import Caller

_ADDITIONS = frozenset({"aten.add_", "aten.sub_"})
_SHRINK = frozenset({"aten.mul", "aten.div", "aten._to_copy"})
_NORM = ("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm")
_BUFFER = "buffer "
_MOST = 16
SHARE = 0.5
_FEWEST = 16  # elements of a product that are 0 only in fp16


class Rounding:
    """Collects the lines that lose most of what they compute.

    Args:
        names: Names of the tensors from outside the step, by key of their storage.
    """

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names
        self._absorbed: dict[str, Rounded] = {}
        self._vanished: dict[Any, Rounded] = {}
        self._averaged: dict[str, Rounded] = {}

    def take(self, op: str, func: Any, args: Any, kwargs: Any, result: Any, caller: Caller) -> None:
        """Examine an operator, after it has run.

        Args:
            op: Its name.
            func: Its overload.
            args: Its arguments.
            kwargs: Its keyword arguments.
            result: Its result.
            caller: Its caller.
        """
        if op.endswith(_NORM) and not caller.node:
            self._average(args, caller)
        if not isinstance(result, torch.Tensor) or result.dtype not in HALVES:
            return
        if op in _ADDITIONS and not caller.node and not result.requires_grad:
            name = self._names.get(storage_key(args[0]), "")
            if name.startswith(_BUFFER) and len(self._absorbed) < _MOST:
                self._add_up(result, args[1], caller, name.removeprefix(_BUFFER))
        elif op in _SHRINK and _is_own(caller.node) and result.dtype == torch.float16:
            self._shrink(func, args, kwargs, result, caller)

    def _average(self, args: Any, caller: Caller) -> None:
        """Note the running statistics of a batch norm in training, if they are in a half format."""
        mean, is_training = args[3], args[5]
        is_half = isinstance(mean, torch.Tensor) and mean.dtype in HALVES
        if is_half and is_training is True and len(self._averaged) < _MOST:
            name = self._names.get(storage_key(mean), "").removeprefix(_BUFFER)
            self._averaged[caller.module] = _rounded(name, mean, 0, mean.numel(), caller)

    def _add_up(self, total: torch.Tensor, addend: Any, caller: Caller, name: str) -> None:
        if not isinstance(addend, torch.Tensor | int | float) or not total.numel():
            return
        adds = torch.as_tensor(addend, device=total.device) != 0
        lost = ((total + addend) == total) & adds & (total != 0)
        count = int(adds.expand_as(total).sum()) if adds.ndim <= total.ndim else 0
        if count and int(lost.sum()) >= SHARE * count:
            self._absorbed[name] = _rounded(name, total, int(lost.sum()), count, caller)

    def _shrink(
        self, func: Any, args: Any, kwargs: Any, result: torch.Tensor, caller: Caller
    ) -> None:
        at = caller.user_line or caller.line
        if at in self._vanished or len(self._vanished) >= _MOST:
            return
        wide = [each.float() if isinstance(each, torch.Tensor) else each for each in args]
        same = {key: each for key, each in kwargs.items() if key != "dtype"}
        exact = func(*wide, **same, **({"dtype": torch.float32} if "dtype" in kwargs else {}))
        count = int((exact != 0).sum())
        lost = int(((exact != 0) & (result == 0)).sum())
        if lost >= max(_FEWEST, SHARE * count):
            self._vanished[at] = _rounded("", exact, lost, count, caller)

    @property
    def absorbed(self) -> tuple[Rounded, ...]:
        """The buffers that no longer change when numbers are added to them."""
        return tuple(self._absorbed.values())

    @property
    def averaged(self) -> tuple[Rounded, ...]:
        """The running means of batch norms in a half format."""
        return tuple(self._averaged.values())

    @property
    def vanished(self) -> tuple[Rounded, ...]:
        """The lines of a backward of the program's own whose results are mostly 0 in fp16."""
        return tuple(self._vanished.values())


def _is_own(node: str) -> bool:
    """Return whether a node of a backward is a function of the program: torch numbers its own."""
    return bool(node) and not node[-1].isdigit()


def _rounded(name: str, tensor: torch.Tensor, lost: int, count: int, caller: Caller) -> Rounded:
    form = format_name(tensor.dtype) if tensor.dtype in HALVES else "fp16"
    largest = float(tensor.detach().abs().max())
    where = site(caller.user_line or caller.line)
    return Rounded(name, form, largest, lost, count, caller.module, where)
