"""Saves and loads the state of an engine: plain containers and tensors, exact to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import TYPE_CHECKING, Any

from halfstep.engine.misuse import warn_new_recipe
from halfstep.optim.zero import is_zero
from halfstep.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sized

    from torch.optim import Optimizer

    from halfstep.engine.assemble import Assembly
    from halfstep.engine.passes.weights import MicroBatchWeights
    from halfstep.engine.processes.ranks import Ranks


def save_assembly(assembly: Assembly, recipe: Recipe, weights: MicroBatchWeights) -> dict[str, Any]:
    """Return the state of every part of an engine, including partly filled windows.

    With several processes, the gradients of such a window are averaged over them first, so that any
    number of processes can resume it.
    """
    open_windows = [window for window in assembly.windows if window.backwards]
    for window in open_windows:
        window.hide_true_grads()
    assembly.replicas.average(open_windows)
    for window in open_windows:
        if window.counts_samples and assembly.ranks.size > 1:
            window.samples = assembly.ranks.mean(window.samples, window.params[0].device)
    saved = {
        "recipe": recipe.name,
        "settings": recipe.settings(),
        "accumulate": weights.accumulate,
        "samples_per_micro_step": weights.samples_per_micro_step,
        "skipped": assembly.settlement.skipped,
        "optimizers": [_optimizer_state(w.optimizer, assembly.ranks) for w in assembly.windows],
        "schedulers": [scheduler.state_dict() for scheduler in assembly.settlement.schedulers],
        "averages": [average.state_dict() for average in assembly.averages],
        "scales": assembly.scales.state_dict(),
        "windows": [window.state_dict() for window in assembly.windows],
        "statistics": [each.state_dict() for each in assembly.statistics],
        "techniques": {type(t).__name__: t.state_dict() for t in assembly.techniques},
    }
    for window in open_windows:
        window.show_true_grads()
        window.mark_gradients()
    return saved


def load_assembly(
    assembly: Assembly, state: Mapping[str, Any], recipe: Recipe, weights: MicroBatchWeights
) -> bool:
    """Load the state that `save_assembly` returned.

    Args:
        assembly: The parts of the engine into which the state is loaded.
        state: The saved state; it contains the recipe and `accumulate` of the saved engine.
        recipe: The recipe of the engine into which the state is loaded.
        weights: The weights of micro-batches of this engine.

    Returns:
        Whether the state was saved under the same recipe. Only then are loss scales, windows,
        running statistics and the states of techniques loaded too.

    Raises:
        ValueError: If a part is missing or is of another type, if the number of optimizers,
            schedulers or averages differs, if the state holds a window that was partly filled under
            another `accumulate`, or if it is damaged. Nothing has been loaded then.
    """
    refuse_foreign(state)
    holds_window = any(window["backwards"] for window in state["windows"])
    if holds_window and state["accumulate"] != weights.accumulate:
        raise ValueError(
            f"the state holds a window that was partly filled under "
            f"accumulate={state['accumulate']}, and "
            f"this engine has accumulate={weights.accumulate}; resume with the same value, or save "
            "after a window has closed"
        )
    kinds: dict[str, Sized] = {
        "optimizers": assembly.windows,
        "schedulers": assembly.settlement.schedulers,
        "averages": assembly.averages,
    }
    for kind, here in kinds.items():
        if len(state[kind]) != len(here):
            raise ValueError(
                f"the state has {len(state[kind])} {kind}, this engine {len(here)}; build the "
                "engine as it was built when the state was saved"
            )
    for window, saved in zip(assembly.windows, state["optimizers"], strict=True):
        window.load_optimizer(saved)
    for scheduler, saved in zip(assembly.settlement.schedulers, state["schedulers"], strict=True):
        scheduler.load_state_dict(saved)
    for average, saved in zip(assembly.averages, state["averages"], strict=True):
        average.load_state_dict(saved)
    assembly.settlement.settled_skips = state["skipped"]
    assembly.settlement.in_a_row.clear()
    weights.samples_per_micro_step = state["samples_per_micro_step"]
    if _settings_of(state) == recipe.settings():
        _load_numerics(assembly, state)
        return True
    warn_new_recipe(state["recipe"], recipe.name, _changed(state, recipe), lost_window=holds_window)
    return False


_PARTS: dict[str, type | tuple[type, ...]] = {
    "recipe": str,
    "settings": Mapping,
    "accumulate": int,
    "samples_per_micro_step": (int, float, NoneType),
    "steps": int,
    "skipped": int,
    "optimizers": list,
    "schedulers": list,
    "averages": list,
    "scales": Mapping,
    "windows": list,
    "statistics": list,
    "techniques": Mapping,
}
_ENTRIES = {
    "optimizers": ("state", "param_groups"),
    "averages": ("weights", "taken", "steps"),
    "windows": (
        *("micro_steps", "samples", "backwards", "pending"),
        *("grads", "true_grads", "found"),
    ),
}
_WRITE = "load what engine.state_dict() returned; models and optimizers have states of their own"


def refuse_foreign(state: Mapping[str, Any]) -> None:
    """Refuse a state that `Engine.state_dict` did not return, or that has lost a part.

    Raises:
        ValueError: If it is no mapping, lacks a part, or if a part is of another type. It is the
            same error for all, because one file was given for another, or is damaged.
    """
    if not isinstance(state, Mapping):
        raise ValueError(f"the state of an engine is a {type(state).__name__}; {_WRITE}")  # noqa: TRY004
    _refuse_gaps("the state of an engine", state, _PARTS)
    for name, kind in _PARTS.items():
        if not isinstance(state[name], kind) or isinstance(state[name], bool):
            raise ValueError(  # noqa: TRY004
                f"the state of an engine has {state[name]!r:.60} as {name}, which no engine saves; "
                "the file is damaged, so load another one"
            )
    for name, keys in _ENTRIES.items():
        for place, entry in enumerate(state[name]):
            if entry is not None:  # as with the state of ZeRO on other ranks than 0
                _refuse_gaps(f"{name}[{place}] in the state of an engine", entry, keys)
    _refuse_gaps("scales in the state of an engine", state["scales"], ["scalers"])


def _refuse_gaps(what: str, given: object, keys: Collection[str]) -> None:
    held: Iterable[object] = given if isinstance(given, Mapping) else ()
    missing = [key for key in keys if key not in held]
    if missing:
        others = [repr(key) for key in held if key not in {*keys}][:3]
        instead = f" (it has {', '.join(others)})" if others else ""
        raise ValueError(f"{what} lacks {', '.join(missing)}{instead}; {_WRITE}")


def _changed(state: Mapping[str, Any], recipe: Recipe) -> list[str]:
    """Return the names of the fields whose values in the recipe and in the saved state differ."""
    saved, new = _settings_of(state), recipe.settings()
    return [name for name in new | saved if saved.get(name) != new.get(name)]


def _settings_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe settings of a saved state; former names of fields become today's names."""
    return Recipe(state["recipe"], **state["settings"]).settings()


def _optimizer_state(optimizer: Optimizer, ranks: Ranks) -> dict[str, Any] | None:
    if is_zero(optimizer):
        optimizer.consolidate_state_dict(to=0)  # type: ignore[attr-defined]  # ZeRO has it
        if ranks.rank > 0:
            return None
    return optimizer.state_dict()


def _load_numerics(assembly: Assembly, state: Mapping[str, Any]) -> None:
    assembly.scales.load_state_dict(state["scales"])
    counts_samples = state["samples_per_micro_step"] is not None
    for window, saved in zip(assembly.windows, state["windows"], strict=True):
        window.load_state_dict(saved, counts_samples=counts_samples)
    # An engine that applies every step has no copies of statistics.
    for statistics, saved in zip(assembly.statistics, state["statistics"], strict=False):
        statistics.load_state_dict(saved)
    for technique in assembly.techniques:
        name = type(technique).__name__
        if name in state["techniques"]:  # The saved engine lacks it if its model was sharded.
            technique.load_state_dict(state["techniques"][name])
