"""The processes that train one run together: what they tell each other, and agree on.

What is said here is small and lies on the CPU: counts, flags, errors, figures, a checkpoint that is
read. Gradients are the engine's business. A process alone goes through the same calls, which then
do nothing.
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
    """Another process has an error, for which it exits with `code`, and says so itself."""

    def __init__(self, code: int) -> None:
        super().__init__("another process has an error")
        self.code = code


@dataclass(frozen=True, slots=True)
class Processes:
    """One of several processes, and the others; alone by default.

    Attributes:
        rank: Which one this is, from 0.
        size: How many there are.
        device: What this one trains on; None where the config alone decides.
        group: Sends CPU tensors and objects; None for a process without others.
        hosts: The machine that each rank is on.
    """

    rank: int = 0
    size: int = 1
    device: torch.device | None = None
    group: dist.ProcessGroup | None = None
    hosts: tuple[str, ...] = ()

    @property
    def joined(self) -> bool:
        """Whether there is a process group, if only of one."""
        return self.group is not None

    @property
    def is_first(self) -> bool:
        """Whether this one writes files and prints."""
        return self.rank == 0

    def describe(self) -> dict[str, Any]:
        """Return what there is to say of several processes, as plain data; nothing of one alone."""
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
        return [each.tolist() for each in gathered]

    def sums(self, values: Sequence[float]) -> list[float]:
        """Return the sum of each number over the ranks, added up in fp64."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total, group=self.group)
        return total.tolist()

    def any(self, flag: bool) -> bool:
        """Tell whether `flag` is set on any rank."""
        return any(said for (said,) in self.numbers([flag]))

    def gather(self, value: Any) -> list[Any]:
        """Return the value of every rank, by rank: on the first one only, elsewhere nothing."""
        if self.size == 1:
            return [value]
        gathered: list[Any] | None = [None] * self.size if self.is_first else None
        dist.gather_object(value, gathered, group=self.group)
        return gathered or []

    def together(self, function: Callable[[], _Result]) -> _Result:
        """Call a function everywhere, and go on only if it fails nowhere.

        Raises:
            Exception: On the lowest rank whose call raised, what it raised.
            FailedElsewhere: On all others.
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
        """Call a function on the first rank, and return its result everywhere.

        Raises:
            Exception: On the first rank, what the call raised.
            FailedElsewhere: On all others.
        """
        result = self.together(lambda: function() if self.is_first else None)
        if self.size > 1:
            sent = [result]
            dist.broadcast_object_list(sent, src=0, group=self.group)
            result = sent[0]
        return result  # type: ignore[return-value]  # every rank has it now

    def take_buffers_of_first(self, model: nn.Module) -> None:
        """Give buffers, such as BatchNorm's running statistics, the values of the first rank."""
        if self.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer.detach(), src=0)


ALONE = Processes()


def job() -> str:
    """Return torchrun's name of the job, the same after a restart."""
    return os.environ.get("TORCHELASTIC_RUN_ID", "")


def exit_code(error: BaseException | None) -> int:
    """Return the exit code of an error; 0 for none."""
    if error is None:
        return 0
    return _USERS_MISTAKE if isinstance(error, ValueError | OSError) else _OTHER_ERROR
