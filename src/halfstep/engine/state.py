"""Saving and loading what an engine is made of: plain containers and tensors, bit for bit."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from halfstep.engine.misuse import warn_new_recipe
from halfstep.engine.parallel.ranks import is_zero
from halfstep.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Sized

    from torch.optim import Optimizer

    from halfstep.engine.parallel.ranks import Ranks
    from halfstep.engine.update import Update
    from halfstep.engine.weights import MicroBatchWeights
    from halfstep.techniques import Technique


def save_parts(parts: Update, recipe: Recipe, weights: MicroBatchWeights) -> dict[str, Any]:
    """Return the state of every part of an engine, a half-filled window included.

    On several processes a window is averaged first, so that any number of them can go on with it.
    """
    open_slots = [slot for slot in parts.slots if slot.backwards]
    for slot in open_slots:
        slot.hide_true_grads()
    parts.replicas.average(open_slots)
    for slot in open_slots:
        if slot.samples and parts.ranks.size > 1:
            slot.samples = parts.ranks.mean(slot.samples, slot.params[0].device)
    saved = {
        "recipe": recipe.name,
        "settings": recipe.settings(),
        "accumulate": weights.accumulate,
        "samples_per_micro_step": weights.samples_per_micro_step,
        "skipped": parts.settlement.skipped,
        "optimizers": [_optimizer_state(slot.optimizer, parts.ranks) for slot in parts.slots],
        "schedulers": [scheduler.state_dict() for scheduler in parts.settlement.schedulers],
        "averages": [average.state_dict() for average in parts.averages],
        "scales": parts.scales.state_dict(),
        "windows": [slot.state_dict() for slot in parts.slots],
        "statistics": [guard.state_dict() for guard, _ in parts.statistics],
        "techniques": {type(t).__name__: t.state_dict() for t in parts.techniques},
    }
    for slot in open_slots:
        slot.show_true_grads()
        slot.mark_gradients()
    return saved


def load_parts(
    parts: Update, state: Mapping[str, Any], recipe: Recipe, weights: MicroBatchWeights
) -> bool:
    """Take over what `save_parts` returned.

    Args:
        parts: The parts of the engine that loads.
        state: What was saved, with the recipe and the window that it was saved under.
        recipe: The recipe of that engine.
        weights: How it weights micro-batches.

    Returns:
        Whether the state was saved under the same recipe, so that loss scales, windows and what
        techniques keep were taken over too.

    Raises:
        ValueError: If the state is of another number of optimizers, schedulers or averages, or
            holds a window half-filled under another `accumulate`.
    """
    holds_window = any(window["backwards"] for window in state["windows"])
    if holds_window and state["accumulate"] != weights.accumulate:
        raise ValueError(
            f"the state holds a window half-filled under accumulate={state['accumulate']}, and "
            f"this engine has accumulate={weights.accumulate}; resume with the same, or save "
            "where a window has closed"
        )
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
    weights.samples_per_micro_step = state["samples_per_micro_step"]
    if _settings_of(state) == recipe.settings():
        _load_numerics(parts, state)
        return True
    warn_new_recipe(state["recipe"], recipe.name, lost_window=holds_window)
    return False


def _settings_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a state was saved under, by the names that fields have now."""
    return Recipe(state["recipe"], **state["settings"]).settings()


def load_optimizer(
    optimizer: Optimizer, techniques: Sequence[Technique], saved: dict[str, Any] | None
) -> None:
    """Load the state of an optimizer, in the formats that the techniques keep it in."""
    if saved is None:
        raise ValueError(
            "the state of a ZeroRedundancyOptimizer is whole on the first process only; load what "
            "that one saved on every process"
        )
    with ExitStack() as stack:
        for technique in techniques:
            stack.enter_context(technique.loading(optimizer))
        optimizer.load_state_dict(saved)


def _optimizer_state(optimizer: Optimizer, ranks: Ranks) -> dict[str, Any] | None:
    if is_zero(optimizer):
        optimizer.consolidate_state_dict(to=0)  # type: ignore[attr-defined]  # ZeRO has it
        if ranks.rank > 0:
            return None
    return optimizer.state_dict()


def _load_numerics(parts: Update, state: Mapping[str, Any]) -> None:
    parts.scales.load_state_dict(state["scales"])
    for slot, saved in zip(parts.slots, state["windows"], strict=True):
        slot.load_state_dict(saved)
    for (guard, _), saved in zip(parts.statistics, state["statistics"], strict=True):
        guard.load_state_dict(saved)
    for technique in parts.techniques:
        name = type(technique).__name__
        if name in state["techniques"]:  # a sharded model needs fewer
            technique.load_state_dict(state["techniques"][name])
