"""Ends a run whose validation has stopped getting better."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from halfstep.train.config import EarlyStoppingConfig
    from halfstep.train.progress import Progress
    from halfstep.train.validate import Figures


def look(config: EarlyStoppingConfig | None, progress: Progress, figures: Figures) -> str | None:
    """Take a validation into account.

    Args:
        config: Which figure counts, and how long to wait; None never stops.
        progress: Where the waiting is counted.
        figures: The validation.

    Returns:
        Why the run ends here, or None.
    """
    if config is None:
        return None
    value = getattr(figures, config.metric)
    sign = 1 if config.metric == "accuracy" else -1
    # A loss that is not a number is no better than any: the comparison is False.
    if progress.target is None or sign * value > sign * progress.target:
        progress.target, progress.waiting = value, 0
        return None
    progress.waiting += 1
    if progress.waiting < config.patience:
        return None
    return (
        f"stopped early: the validation {config.metric} has not been better than "
        f"{progress.target:.4f} for {progress.waiting} validations"
    )
