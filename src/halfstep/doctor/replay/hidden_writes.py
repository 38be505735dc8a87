"""Finds writes of a traced step that autograd does not notice, to values that its backward reads.

A write through `.data` does not count as a change of the tensor. The backward then computes with
the new values, as if the forward had done so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.doctor.internals import (
    changes_inputs,
    current_node,
    next_sequence_number,
    node_number,
)
from halfstep.doctor.record.hidden_write import HiddenWrite
from halfstep.doctor.record.sites import site
from halfstep.doctor.replay.memory import share_elements, storage_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfstep.doctor.bundle.caller import Caller

_KEEP_VALUES = frozenset({"aten.detach_", "aten.requires_grad_", "aten.resize_", "aten.set_"})


class HiddenWrites:
    """Follows the order of operators and writes."""

    def __init__(self) -> None:
        self._clock = 0
        self._ran: dict[int, tuple[int, str, Caller]] = {}
        self._writes: dict[int, tuple[int, torch.Tensor, str, Caller]] = {}
        self._found: dict[tuple[object, object], HiddenWrite] = {}

    def take(
        self,
        op: str,
        func: Any,
        args: tuple[Any, ...],
        given: Iterable[torch.Tensor],
        caller: Caller,
    ) -> None:
        """Follow an operator.

        Args:
            op: Its name.
            func: Its overload.
            args: Its arguments.
            given: The tensors in them.
            caller: Its caller.
        """
        node = current_node()
        if node is not None:
            self._read(node_number(node), given)
            return
        self._clock += 1
        self._ran.setdefault(next_sequence_number() - 1, (self._clock, op, caller))
        if not op.endswith("_") or op in _KEEP_VALUES or not changes_inputs(func):
            return
        written = args[0] if args else None
        if isinstance(written, torch.Tensor) and not written.requires_grad:
            # The tensor is kept, so that no other one is given its memory.
            self._writes[storage_key(written)] = (self._clock, written, op, caller)

    def _read(self, node: int, given: Iterable[torch.Tensor]) -> None:
        """Compare what a backward reads with what its node has saved."""
        if not self._writes or node not in self._ran:
            return
        saved_at, op, caller = self._ran[node]
        for each in given:
            write = self._writes.get(storage_key(each))
            if write is not None and write[0] > saved_at and share_elements(each, write[1]):
                self._found.setdefault(
                    (write[3].user_line, caller.user_line),
                    HiddenWrite(
                        op=op.partition(".")[2],
                        by=write[2].partition(".")[2],
                        module=caller.module,
                        site=site(write[3].user_line),
                        saved_at=site(caller.user_line),
                    ),
                )

    def freeze(self) -> tuple[HiddenWrite, ...]:
        """Return the writes."""
        return tuple(self._found.values())
