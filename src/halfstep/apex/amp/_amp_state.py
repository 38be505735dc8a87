"""The shared state of `amp`, with Apex's names, because programs access it directly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.optim import Optimizer

    from halfstep.apex.amp.interfaces import Handle, Options, Scaler


class AmpState:
    """The state of `amp` in this process.

    `initialize` sets the attributes that `__init__` does not set.

    Attributes:
        hard_override: Whether a contradiction in the options is printed instead of raised.
        allow_incoming_model_not_fp32: Whether `initialize` accepts models with fp16 parameters.
        verbosity: 0 prints nothing; 2 also prints every cast of O1.
        opt_properties: The current options.
        loss_scalers: The loss scale of each loss, by `loss_id`.
        min_loss_scale: The argument of `initialize`.
        max_loss_scale: The argument of `initialize`.
        handle: The handle of O1's patches.
    """

    opt_properties: Options
    loss_scalers: list[Scaler]
    min_loss_scale: float | None
    max_loss_scale: float
    handle: Handle

    def __init__(self) -> None:
        self.hard_override = False
        self.allow_incoming_model_not_fp32 = False
        self.verbosity = 1


_amp_state = AmpState()


def warn_or_err(message: str) -> None:
    """Raise a RuntimeError, or print its message if `hard_override` is set."""
    if not _amp_state.hard_override:
        raise RuntimeError(message)
    say(f"Warning:  {message}")


def maybe_print(message: str, rank0: bool = False) -> None:
    """Print a message unless `verbosity` is 0.

    Args:
        message: A line of text.
        rank0: Whether only the process with rank 0 prints it.
    """
    if _amp_state.verbosity > 0 and not (rank0 and _rank() > 0):
        say(message)


def say(message: str) -> None:
    """Print a message to stdout, where Apex prints it too."""
    print(message)  # noqa: T201  # they parse it there


def master_params(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """Yield the parameters that `optimizer` updates: fp32 masters where it has them.

    Args:
        optimizer: An optimizer that `initialize` returned.
    """
    for group in optimizer.param_groups:
        yield from group["params"]


def _rank() -> int:
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return 0
    return distributed.get_rank()
