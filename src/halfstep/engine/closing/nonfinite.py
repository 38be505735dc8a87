"""Non-finite gradients: the policy of an engine, its error, and skipped steps in a row."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast, get_args

from halfstep.engine.misuse import EngineWarning
from halfstep.kernels import gradients

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch
    from torch.optim import Optimizer

    from halfstep.engine.window.window import Window

Policy = Literal["skip", "raise", "apply"]

A_FEW = 3
"""Number of consecutive skipped steps of an optimizer after which the engine warns."""
_SHOWN = 5
_PACKAGE = str(Path(__file__).resolve().parents[2])


class NonFiniteGradients(RuntimeError):  # noqa: N818  (a noun, as LossScaleCollapse is)
    """Raised under `nonfinite="raise"`, before anything was updated.

    Attributes:
        step: Number of the step, from 1.
        parameters: Names of the parameters whose gradient contains inf or NaN.
    """

    def __init__(self, step: int, parameters: Sequence[str]) -> None:
        self.step, self.parameters = step, tuple(parameters)
        super().__init__(
            f"gradients not finite at step {step}: {shortened(parameters)}. Nothing was updated. "
            "Look for inf or NaN in the inputs, the loss or the forward pass; lower the learning "
            "rate; or write nonfinite='skip', which skips such steps"
        )

    def __reduce__(self) -> tuple[type[NonFiniteGradients], tuple[int, tuple[str, ...]]]:
        return type(self), (self.step, self.parameters)  # from one process to another


def checked_policy(given: object) -> Policy:
    """Check the argument `nonfinite` of an engine, and return it.

    Raises:
        ValueError: If it is no policy.
    """
    if given not in get_args(Policy):
        raise ValueError(f"nonfinite is {given!r}; allowed: 'skip', 'raise' or 'apply'")
    return cast("Policy", given)


def refuse_nonfinite(
    step: int, windows: Iterable[Window], names: Mapping[torch.Tensor, str]
) -> None:
    """Raise the error for gradients that are not finite; waits for the device.

    Args:
        step: Number of the step.
        windows: The closing windows with such a gradient.
        names: Names of the parameters.
    """
    found = []
    for window in windows:
        norms = gradients.norms(window.grads) if window.each_norm is None else window.each_norm
        found += not_finite(window.reached, norms, names)
    raise NonFiniteGradients(step, found)


def not_finite(
    params: Sequence[torch.Tensor], norms: torch.Tensor, names: Mapping[torch.Tensor, str]
) -> list[str]:
    """Return the names of the parameters with a non-finite norm; waits for the device.

    Args:
        params: Parameters of any shape.
        norms: A norm for each of them, such as that of its gradient; shape (len(params),).
        names: Names of parameters.
    """
    return [
        names.get(param, f"a parameter of shape {tuple(param.shape)}")
        for param, is_finite in zip(params, norms.isfinite().tolist(), strict=True)
        if not is_finite
    ]


def shortened(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def warn_skipped(
    optimizer: str, step: int, *, in_gradients: Sequence[str], in_weights: Sequence[str]
) -> None:
    """Warn that an optimizer has skipped a few steps in a row for non-finite gradients.

    Args:
        optimizer: Class of the optimizer.
        step: Number of the last of these steps.
        in_gradients: Names of the parameters whose gradients are not finite in this step.
        in_weights: Names of those that are not finite themselves.
    """
    where = f" (in {shortened(in_gradients)})" if in_gradients else ""
    warnings.warn(
        f"{optimizer} has skipped {A_FEW} steps in a row, up to step {step}, because gradients are "
        f"inf or NaN{where}; "
        + (
            f"the weights are inf or NaN too (in {shortened(in_weights)}), so all later steps will "
            "be skipped: load weights from before, and lower the learning rate"
            if in_weights
            else "look for inf or NaN in the inputs, the loss or the forward pass, or write "
            "nonfinite='raise' to stop at the first such step"
        ),
        EngineWarning,
        stacklevel=_level_of_caller(),
    )


def _level_of_caller() -> int:
    """Return the `stacklevel` of the line that called halfstep, for a warning of the caller."""
    frame, level = sys._getframe(1), 1  # noqa: SLF001  # inspect.stack() reads every source file
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    return level


class SkipsInARow:
    """Counts the consecutive skipped steps of each optimizer.

    Args:
        warns: Whether `A_FEW` such steps are worth a warning. They are not with a loss scale: it
            starts so high that the first steps may overflow, and its collapse is an error.
    """

    def __init__(self, *, warns: bool) -> None:
        self._warns = warns
        self._counts: Counter[Optimizer] = Counter()

    def __bool__(self) -> bool:
        return bool(self._counts)

    def clear(self) -> None:
        """Forget all steps."""
        self._counts.clear()

    def may_warn(self, *, ahead: int) -> bool:
        """Tell whether a skip in the next step is worth a warning.

        Args:
            ahead: Number of the last steps that were not counted yet. Of three skips in a row that
                are all among them nothing is known in time.
        """
        least = A_FEW - 1 - ahead
        return self._warns and any(least <= count < A_FEW for count in self._counts.values())

    def add(self, optimizer: Optimizer, *, skipped: bool) -> bool:
        """Count a step of an optimizer; tell whether it is worth a warning."""
        if not skipped:
            self._counts.pop(optimizer, None)
            return False
        self._counts[optimizer] += 1
        return self._warns and self._counts[optimizer] == A_FEW
