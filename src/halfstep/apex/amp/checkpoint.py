"""`amp.state_dict` and `amp.load_state_dict`, in Apex's format."""

# ruff: noqa: SLF001  (the underscored names are Apex's, and programs use them)

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from halfstep.apex.amp._amp_state import _amp_state, say

if TYPE_CHECKING:
    from halfstep.apex.amp.interfaces import Scaler


def state_dict(destination: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return `{"loss_scaler0": {"loss_scale": float, "unskipped": int}}`, with a key for each loss.

    If amp is disabled, there are no keys. The values of fp32 master weights are in the
    `state_dict()` of the model.

    Args:
        destination: A dict to fill and return; None for a new one.
    """
    found: dict[str, Any] = OrderedDict() if destination is None else destination
    for index, scaler in enumerate(_scalers()):
        found[f"loss_scaler{index}"] = {
            "loss_scale": scaler.loss_scale(),
            "unskipped": scaler._unskipped,
        }
    return found


def load_state_dict(state_dict: Mapping[str, Any]) -> None:
    """Load a result of `state_dict`; print a warning if the number of losses differs.

    Args:
        state_dict: A result of `amp.state_dict()`, of this package or of Apex.

    Raises:
        RuntimeError: If a key is not that of a loss scale, or its value is not a loss scale.
    """
    scalers = _scalers()
    if len(state_dict) != len(scalers):
        say(
            f"Warning: state_dict contains {len(state_dict)} entries, while {len(scalers)} "
            "loss_scalers are used"
        )
    known = [key for key in state_dict if "loss_scaler" in key]
    for index, key in enumerate(known):
        if index >= len(scalers):
            say(f"Skipping loss_scaler[{index}], since num_losses was set to {len(scalers)}")
            break
        saved, scaler = state_dict[key], scalers[index]
        if not (_is_number(saved, "loss_scale") and _is_number(saved, "unskipped")):
            raise RuntimeError(
                f"Error(s) in loading state_dict. {key!r} is {str(saved)[:80]!r}; allowed: "
                "{'loss_scale': number, 'unskipped': number}, as amp.state_dict() returned it"
            )
        # Apex may have saved a scale that had fallen to zero. Gradients cannot be divided by zero.
        scaler._loss_scale = saved["loss_scale"] or scaler.floor()
        scaler._unskipped = saved["unskipped"]
    unexpected = [key for key in state_dict if key not in known]
    if unexpected:
        raise RuntimeError(
            "Error(s) in loading state_dict. Unexpected key(s) in state_dict: "
            f"{', '.join(repr(key) for key in unexpected)}. Write amp.load_state_dict("
            "checkpoint['amp']), with what amp.state_dict() returned"
        )


def _is_number(saved: object, name: str) -> bool:
    value = saved.get(name) if isinstance(saved, Mapping) else None
    return isinstance(value, int | float) and 0 <= value < math.inf


def _scalers() -> list[Scaler]:
    return getattr(_amp_state, "loss_scalers", [])
