"""The accelerators of this machine, and what torch has for each kind: CUDA, ROCm, XPU, MPS.

Torch calls AMD's GPUs "cuda", too. The functions here ask `torch.accelerator`; they name a kind
only where torch has nothing in common for all kinds.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

_COPIES_WHILE_COMPUTING = {"cuda", "xpu"}
"""Kinds whose copies into pinned memory run beside the host's work."""


def present() -> list[torch.device]:
    """Return the accelerators of this machine, with their numbers; none if there is only a CPU."""
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None:
        return []
    return [torch.device(kind.type, n) for n in range(torch.accelerator.device_count())]


def in_use(device: torch.device) -> AbstractContextManager[None]:
    """Make an accelerator the current one in the block, for code that names no device.

    The calls of halfstep name theirs. Others do not, such as a loader that pins its batches, or a
    kernel of the user's model: they would allocate on another GPU, or launch there.
    """
    if device.type == "cpu":
        return nullcontext()
    return torch.accelerator.device_index(device.index)


def name_of(device: torch.device) -> str | None:
    """Return the name that the driver gives an accelerator; None if torch does not tell it."""
    module: Any = getattr(torch, device.type, None)
    return module.get_device_name(device) if hasattr(module, "get_device_name") else None


def counts_memory(device: torch.device) -> bool:
    """Tell whether torch counts the memory that it allocates on a device."""
    if device.type == "cpu":
        return False
    try:
        torch.accelerator.max_memory_allocated(device)
    except (RuntimeError, NotImplementedError):  # MPS, until torch 2.12
        return False
    return True


def empty_cache() -> None:
    """Give back memory that torch holds and does not use, if torch can."""
    if present():
        with suppress(RuntimeError, NotImplementedError):  # MPS, until torch 2.12
            torch.accelerator.empty_cache()


def copies_while_computing(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor can be copied to the host without making the host wait."""
    return tensor.device.type in _COPIES_WHILE_COMPUTING


def wide(device: torch.device) -> torch.dtype:
    """Return the widest format that a device computes in: MPS has no fp64."""
    return torch.float32 if device.type == "mps" else torch.float64


def recorded_event(device: torch.device, *, timed: bool = False) -> torch.Event:
    """Return an event that the current stream of an accelerator reaches after its work so far."""
    event = torch.Event(device, enable_timing=timed)
    event.record(torch.accelerator.current_stream(device))
    return event


def forked_rng(device: torch.device) -> AbstractContextManager[None]:
    """Restore the random numbers of the CPU, and of one other device, after the block."""
    if device.type == "cpu":
        return torch.random.fork_rng([])
    return torch.random.fork_rng([device], device_type=device.type)


def random_states() -> list[torch.Tensor]:
    """Return the states of the accelerators' random number generators, that in use first.

    The order is for a resumed run, which may use an accelerator with another number. The list is
    empty if torch has not used an accelerator yet.
    """
    return [module.get_rng_state(*number) for module, number in _generators()]


def set_random_states(states: Sequence[torch.Tensor]) -> None:
    """Set the states that `random_states` returned; those of missing accelerators are ignored."""
    for (module, number), state in zip(_generators(), states, strict=False):
        if state.numel() == module.get_rng_state(*number).numel():  # else of another kind
            module.set_rng_state(state, *number)


def _generators() -> list[tuple[Any, tuple[int, ...]]]:
    """Return the module of torch, and the arguments that name a generator, of each accelerator."""
    gpus = present()
    if not gpus:
        return []
    module: Any = torch.get_device_module(gpus[0])
    if gpus[0].type == "mps":
        return [(module, ())]
    if not module.is_initialized():
        return []
    used = torch.accelerator.current_device_index()
    return [(module, (gpu.index,)) for gpu in sorted(gpus, key=lambda gpu: gpu.index != used)]
