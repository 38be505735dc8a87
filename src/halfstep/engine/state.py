"""Saving and loading what an engine is made of: plain containers and tensors, bit for bit."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Sized

    from torch.optim import Optimizer

    from halfstep.engine.update import Update
    from halfstep.techniques import Technique


def save_parts(parts: Update) -> dict[str, Any]:
    """Return the state of every part of an engine, a half-filled window included."""
    return {
        "skipped": parts.settlement.skipped,
        "optimizers": [slot.optimizer.state_dict() for slot in parts.slots],
        "schedulers": [scheduler.state_dict() for scheduler in parts.settlement.schedulers],
        "averages": [average.state_dict() for average in parts.averages],
        "scales": parts.scales.state_dict(),
        "windows": [slot.state_dict() for slot in parts.slots],
        "statistics": [guard.state_dict() for guard, _ in parts.statistics],
        "techniques": {type(t).__name__: t.state_dict() for t in parts.techniques},
    }


def load_parts(parts: Update, state: Mapping[str, Any], *, numerics: bool) -> None:
    """Take over what `save_parts` returned.

    Args:
        parts: The parts of the engine that loads.
        state: What was saved.
        numerics: Whether it was saved under the same recipe, so that loss scales, windows and what
            techniques keep can be taken over too.

    Raises:
        ValueError: If the state is of another number of optimizers, schedulers or averages.
    """
    kinds: dict[str, Sized] = {
        "optimizers": parts.slots,
        "schedulers": parts.settlement.schedulers,
        "averages": parts.averages,
    }
    for kind, here in kinds.items():
        if len(state[kind]) != len(here):
            raise ValueError(
                f"the state has {len(state[kind])} {kind}, this engine {len(here)}; build the "
                "engine as it was built when the state was saved"
            )
    for slot, saved in zip(parts.slots, state["optimizers"], strict=True):
        load_optimizer(slot.optimizer, parts.techniques, saved)
    for scheduler, saved in zip(parts.settlement.schedulers, state["schedulers"], strict=True):
        scheduler.load_state_dict(saved)
    for average, saved in zip(parts.averages, state["averages"], strict=True):
        average.load_state_dict(saved)
    parts.settlement.skipped = state["skipped"]
    if numerics:
        _load_numerics(parts, state)


def load_optimizer(
    optimizer: Optimizer, techniques: Sequence[Technique], saved: dict[str, Any]
) -> None:
    """Load the state of an optimizer, in the formats that the techniques keep it in."""
    with ExitStack() as stack:
        for technique in techniques:
            stack.enter_context(technique.loading(optimizer))
        optimizer.load_state_dict(saved)


def holds_window(state: Mapping[str, Any]) -> bool:
    """Tell whether a saved state holds a half-filled window."""
    return any(window["backwards"] for window in state["windows"])


def _load_numerics(parts: Update, state: Mapping[str, Any]) -> None:
    parts.scales.load_state_dict(state["scales"])
    for slot, saved in zip(parts.slots, state["windows"], strict=True):
        slot.load_state_dict(saved)
    for (guard, _), saved in zip(parts.statistics, state["statistics"], strict=True):
        guard.load_state_dict(saved)
    for technique in parts.techniques:
        technique.load_state_dict(state["techniques"][type(technique).__name__])
