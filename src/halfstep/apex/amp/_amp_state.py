"""What the parts of `amp` share, under the names by which programs reach for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.optim import Optimizer

    from halfstep.apex.amp.interfaces import Handle, Options, Scaler


class AmpState:
    """The state of the process; `initialize` sets what has no value yet.

    Attributes:
        hard_override: Whether a contradiction in the options is printed instead of raised.
        allow_incoming_model_not_fp32: Whether models may come with half parameters.
        verbosity: 0 prints nothing, 2 every cast of O1.
        opt_properties: The options in force.
        loss_scalers: One for each loss.
        min_loss_scale: As given to `initialize`.
        max_loss_scale: As given to `initialize`.
        handle: What O1 patched.
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
    """Raise a RuntimeError, or print it where `hard_override` is set."""
    if not _amp_state.hard_override:
        raise RuntimeError(message)
    say(f"Warning:  {message}")


def maybe_print(message: str, rank0: bool = False) -> None:
    """Print unless verbosity is 0.

    Args:
        message: A line.
        rank0: Whether the first process alone prints it.
    """
    if _amp_state.verbosity > 0 and not (rank0 and _rank() > 0):
        say(message)


def say(message: str) -> None:
    """Print what users of Apex find on stdout."""
    print(message)  # noqa: T201  # they parse it there


def master_params(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """Yield the parameters that `optimizer` updates: fp32 masters where it has them.

    Args:
        optimizer: One that `initialize` returned.
    """
    for group in optimizer.param_groups:
        yield from group["params"]


def _rank() -> int:
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return 0
    return distributed.get_rank()
