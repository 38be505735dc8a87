"""Communication between the processes that train one run together.

The data exchanged here is small and on the CPU: counts, flags, errors, figures, a loaded
checkpoint. The engine exchanges the gradients. A single process makes the same calls, which then do
not communicate.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

_Result = TypeVar("_Result")

_USERS_MISTAKE = 2
_OTHER_ERROR = 1


class FailedElsewhere(Exception):  # noqa: N818  (the error is another process's, and said there)
    """Another process has an error, reports it itself, and exits with `code`."""

    def __init__(self, code: int) -> None:
        super().__init__("another process has an error")
        self.code = code


@dataclass(frozen=True, slots=True)
class Processes:
    """This process and the others that train the same run; by default there are no others.

    Attributes:
        rank: Rank of this process, from 0.
        size: Number of processes.
        device: The device that this process trains on; None if the config alone decides.
        group: The process group for CPU tensors and objects; None without torchrun.
        hosts: Host name of each rank, by rank.
    """

    rank: int = 0
    size: int = 1
    device: torch.device | None = None
    group: dist.ProcessGroup | None = None
    hosts: tuple[str, ...] = ()

    @property
    def joined(self) -> bool:
        """Whether there is a process group, possibly with only one process."""
        return self.group is not None

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    def describe(self) -> dict[str, Any]:
        """Return number, hosts and job of the processes, as plain data; {} if not `joined`."""
        if not self.joined:
            return {}
        return {"processes": self.size, "hosts": list(self.hosts), "job": job()}

    def numbers(self, values: Sequence[int]) -> list[list[int]]:
        """Return the integers of every rank, by rank."""
        if self.size == 1:
            return [list(values)]
        own = torch.tensor(values, dtype=torch.int64)
        gathered = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(gathered, own, group=self.group)
        return [numbers.tolist() for numbers in gathered]

    def sums(self, values: Sequence[float]) -> list[float]:
        """Return the sum of each number over the ranks, added up in fp64."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total, group=self.group)
        return total.tolist()

    def any(self, flag: bool) -> bool:
        """Tell whether `flag` is set on any rank."""
        return any(number for (number,) in self.numbers([flag]))

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank, on the first rank; an empty list elsewhere."""
        if self.size == 1:
            return [value]
        gathered: list[Any] | None = [None] * self.size if self.is_first else None
        dist.gather_object(value, gathered, group=self.group)
        return gathered or []

    def together(self, function: Callable[[], _Result]) -> _Result:
        """Call a function on every rank; return its result if it fails on none of them.

        Raises:
            Exception: The exception of the call, on the lowest rank whose call raised.
            FailedElsewhere: On all other ranks, if the call raised on any.
        """
        try:
            result, error = function(), None
        except Exception as caught:
            if self.size == 1:
                raise
            error = caught
        codes = [code for (code,) in self.numbers([exit_code(error)])]
        if not any(codes):
            return result
        speaker = next(rank for rank, code in enumerate(codes) if code)
        if error is not None and speaker == self.rank:
            raise error
        raise FailedElsewhere(codes[speaker])

    def from_first(self, function: Callable[[], _Result]) -> _Result:
        """Call a function on the first rank; return its result on every rank.

        Raises:
            Exception: The exception of the call, on the first rank.
            FailedElsewhere: On all other ranks, if the call raised.
        """
        result = self.together(lambda: function() if self.is_first else None)
        if self.size > 1:
            sent = [result]
            dist.broadcast_object_list(sent, src=0, group=self.group)
            result = sent[0]
        return result  # type: ignore[return-value]  # every rank has it now

    def take_buffers_of_first(self, model: nn.Module) -> None:
        """Set buffers, such as BatchNorm's running statistics, to the values of the first rank."""
        if self.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer.detach(), src=0)


ALONE = Processes()


def job() -> str:
    """Return torchrun's id of the job, which does not change at a restart; "" without torchrun."""
    return os.environ.get("TORCHELASTIC_RUN_ID", "")


def exit_code(error: BaseException | None) -> int:
    """Return the exit code of an error; 0 for none."""
    if error is None:
        return 0
    return _USERS_MISTAKE if isinstance(error, ValueError | OSError) else _OTHER_ERROR
