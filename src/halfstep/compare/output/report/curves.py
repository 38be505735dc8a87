"""Curves from the `metrics.jsonl` of runs, with few points, so that a report stays small."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from halfstep.train.store import metrics_log

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from halfstep.compare.plan.score import Score

MOST_POINTS = 400
"""Maximum number of points of a curve; a chart on a screen is not much wider in pixels."""

CURVES = {
    "train_loss": ("train", "loss"),
    "loss_scale": ("train", "loss_scale"),
    "grad_norm": ("train", "grad_norm"),
    "gradient_cosine": ("probe", "gradient_cosine"),
    "unchanged_share": ("probe", "unchanged_share"),
}
"""By name of the curve: the kind of the lines in `metrics.jsonl`, and the key of the values."""

Curve = dict[str, list[Any]]


def read_curves(run: Path, score: Score) -> dict[str, Curve]:
    """Return the curves of a run.

    Args:
        run: The run directory; without metrics, there are no curves.
        score: The figure by which runs are judged, whose curve is "val_score".

    Returns:
        By name in `CURVES`, and of "val_score": "x", the optimizer steps; "y", the values, with
        None for a non-finite value; and "nonfinite", the steps of non-finite values.
    """
    lines = metrics_log.read(run)
    curves = {}
    wanted = {**CURVES, "val_score": ("val", score.name)}
    for name, (kind, key) in wanted.items():
        points = [
            (int(line["step"]), _number(line[key]))
            for line in lines
            if line["kind"] == kind and key in line and "step" in line
        ]
        if points:
            curves[name] = _thinned(points)
    return curves


def _thinned(points: Sequence[tuple[int, float | None]]) -> Curve:
    """Keep the first and the last point, and the lowest and the highest of each interval between.

    Of the steps in "nonfinite", fewer than 100 are kept.
    """
    nonfinite = [step for step, value in points if value is None]
    stretch = max(1, math.ceil(2 * len(points) / MOST_POINTS))
    if len(points) <= MOST_POINTS:
        kept = list(points)
    else:
        kept = [points[0]]
        for start in range(1, len(points) - 1, stretch):
            part = points[start : start + stretch]
            known = [(value, step) for step, value in part if value is not None]
            extremes = {min(known)[1], max(known)[1]} if known else {part[0][0]}
            kept += [(step, value) for step, value in part if step in extremes]
        if kept[-1][0] != points[-1][0]:
            kept.append(points[-1])
    return {
        "x": [step for step, _ in kept],
        "y": [value for _, value in kept],
        "nonfinite": nonfinite[:: max(1, len(nonfinite) // 50)],
    }


def _number(value: Any) -> float | None:
    number = float(value)  # "nan" and "inf" are written as text
    return float(f"{number:.6g}") if math.isfinite(number) else None
