"""The options of `amp.initialize`: their values at each level, and the allowed overrides."""

from __future__ import annotations

import math
from typing import Any

import torch

from halfstep.apex.amp._amp_state import warn_or_err
from halfstep.errors import closest

_UNSET: dict[str, Any] = {
    "enabled": False,
    "opt_level": None,
    "cast_model_type": None,
    "patch_torch_functions": False,
    "keep_batchnorm_fp32": None,
    "master_weights": None,
    "loss_scale": 1.0,
}

OPT_LEVELS: dict[str, dict[str, Any]] = {
    "O0": {
        "cast_model_type": torch.float32,
        "patch_torch_functions": False,
        "keep_batchnorm_fp32": None,
        "master_weights": False,
        "loss_scale": 1.0,
    },
    "O1": {
        "cast_model_type": None,
        "patch_torch_functions": True,
        "keep_batchnorm_fp32": None,
        "master_weights": None,
        "loss_scale": "dynamic",
    },
    "O2": {
        "cast_model_type": torch.float16,
        "patch_torch_functions": False,
        "keep_batchnorm_fp32": True,
        "master_weights": True,
        "loss_scale": "dynamic",
    },
    "O3": {
        "cast_model_type": torch.float16,
        "patch_torch_functions": False,
        "keep_batchnorm_fp32": False,
        "master_weights": False,
        "loss_scale": 1.0,
    },
}

BRIEF = {
    "O0": "O0:  Pure FP32 training.",
    "O1": "O1:  Insert automatic casts around Pytorch functions and Tensor methods.",
    "O2": "O2:  FP16 training with FP32 batchnorm and FP32 master weights.",
    "O3": "O3:  Pure FP16 training.",
}


class Properties:
    """The options by name; each is checked against the level when it is set.

    Attributes:
        options: The values by name; each option is also an attribute.
    """

    options: dict[str, Any]
    enabled: bool
    master_weights: bool | None
    patch_torch_functions: bool

    def __init__(self) -> None:
        object.__setattr__(self, "options", dict(_UNSET))

    def __getattr__(self, name: str) -> Any:
        options = self.__dict__.get("options", {})
        if name in options:
            return options[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.options:
            object.__setattr__(self, name, value)
            return
        check = _CHECKS.get(name)
        self.options[name] = check(value, self.opt_level) if check else value


def properties_for(opt_level: str, overrides: dict[str, Any]) -> Properties:
    """Return the options of a level with overrides, each checked in turn.

    Args:
        opt_level: "O0" to "O3".
        overrides: Values by name; an option with the value None keeps the value of the level.

    Raises:
        RuntimeError: If there is no such level, or if an override contradicts it.
    """
    if opt_level not in OPT_LEVELS:
        raise RuntimeError(
            f"Unexpected optimization level {opt_level}. Options are 'O0', 'O1', 'O2', 'O3'. Note "
            "that in `O0`, `O1`, etc., the prefix O is the letter O, not the number zero"
            f"{_meant(opt_level)}"
        )
    properties = Properties()
    properties.enabled = True
    properties.opt_level = opt_level
    given = {name: value for name, value in overrides.items() if value is not None}
    for name, value in (*OPT_LEVELS[opt_level].items(), *given.items()):
        setattr(properties, name, value)
    return properties


def _meant(level: object) -> str:
    letters = str(level).upper().replace("0", "O", 1)
    if letters in OPT_LEVELS:
        return f"; write opt_level={letters!r}"
    return closest(letters, OPT_LEVELS) or "; write opt_level='O1'"


def _cast_model_type(value: Any, level: str) -> Any:
    if level == "O1" and value not in (None, False, torch.float32):
        warn_or_err(
            "O1 inserts casts around Torch functions rather than model weights, so with O1, the "
            "model weights themselves should remain FP32. If you wish to cast the model to a "
            "different type, use opt_level='O2' or 'O3'. cast_model_type was "
            f"{value}; leave it out, or write opt_level='O2'"
        )
    return value


def _patch_torch_functions(value: Any, level: str) -> Any:
    if level != "O1" and value:
        warn_or_err(
            "Currently, patch_torch_functions=True should only be set by selecting opt_level='O1'. "
            f"opt_level was {level!r}; leave patch_torch_functions out, or write opt_level='O1'"
        )
    return value


def _keep_batchnorm_fp32(value: Any, level: str) -> Any:
    if level == "O1" and value is not None:
        warn_or_err(
            "With opt_level O1, batchnorm functions are automatically patched to run in FP32, so "
            f"keep_batchnorm_fp32 should be None. keep_batchnorm_fp32 was {value}; leave it out, "
            "or write opt_level='O2'"
        )
    known = {"True": True, "False": False}
    kept = known.get(value, value) if isinstance(value, str) else value
    if kept not in (True, False, None) or not isinstance(kept, bool | None):
        raise AssertionError(
            "keep_batchnorm_fp32 must be a boolean, the string 'True' or 'False', or None, found "
            f"keep_batchnorm_fp32={value}; write keep_batchnorm_fp32=True"
        )
    return kept


def _master_weights(value: Any, level: str) -> Any:
    if level == "O1" and value is not None:
        warn_or_err(
            "It doesn't make sense to use master_weights with O1. With O1, your model weights "
            f"themselves should be FP32. master_weights was {value}; leave it out, or write "
            "opt_level='O2'"
        )
    return value


def _loss_scale(value: Any, _: str) -> Any:
    if value == "dynamic":
        return value
    try:
        scale = float(value)
    except (TypeError, ValueError):
        scale = math.nan
    if not 0 < scale < math.inf:
        raise ValueError(
            f"loss_scale is {value!r}; allowed: 'dynamic', or a positive number such as 128.0 or "
            "'128.0'"
        )
    return scale


_CHECKS = {
    "cast_model_type": _cast_model_type,
    "patch_torch_functions": _patch_torch_functions,
    "keep_batchnorm_fp32": _keep_batchnorm_fp32,
    "master_weights": _master_weights,
    "loss_scale": _loss_scale,
}
