"""The page of a diagnosis: verdicts, evidence, curves of the steps, and the replays."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfstep.plurals import counted
from halfstep.show.document import CHART, document

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfstep.doctor import Diagnosis, Evidence
    from halfstep.doctor.record import Numbers, Replay, StepNumbers

SOURCE = "diagnosis.json"
FIRST_REPLAYS = 6
"""Number of replays that are shown at first; the others are shown on demand."""
_HERE = Path(__file__).parent
_CURVES: tuple[tuple[str, Callable[[StepNumbers], float | None], bool], ...] = (
    ("loss", lambda step: step.loss, False),
    ("gradient norm", lambda step: step.gradient_norm, True),
    ("loss scale", lambda step: step.scale, True),
)


def page(diagnosis: Diagnosis, evidence: Evidence) -> str:
    """Return a diagnosis and its evidence as one HTML document."""
    charts = _charts(evidence.numbers)
    return document(
        _HERE / "diagnosis.html",
        scripts=("state.js", *CHART, "diagnosis.js") if charts else ("state.js",),
        data={"charts": charts},
        title=f"doctor: {diagnosis.headline}",
        summary=_summary(evidence),
        diagnosis=diagnosis,
        births=[birth for birth in evidence.births if birth.culprit],
        replays=[_row(replay) for replay in evidence.replays if not replay.note],
        first_replays=FIRST_REPLAYS,
        charts=charts,
        source=SOURCE,
        environment=[
            {
                "name": field.name.replace("_", " "),
                "value": _text(getattr(evidence.environment, field.name)),
                "source": f"{SOURCE}#evidence.environment.{field.name}",
                "differs": "False",
            }
            for field in fields(evidence.environment)
            if getattr(evidence.environment, field.name) is not False
        ],
        notes=[note for note in (diagnosis.unchecked, *diagnosis.notes) if note],
    )


def _summary(evidence: Evidence) -> str:
    text = counted(evidence.loop.iterations, "step")
    if evidence.numbers.skips:
        text += f", {evidence.numbers.skips} skipped by the scaler"
    if evidence.ending.kind:
        text += f"; ended by {evidence.ending.kind}"
    return text


def _row(replay: Replay) -> tuple[str, ...]:
    return (
        str(replay.iteration),
        replay.name if replay.name != "plain" else "unchanged",
        "finite" if replay.finite else "not finite",
        "-" if replay.loss is None else f"{replay.loss:.4g}",
        "-" if replay.largest_gradient is None else f"{replay.largest_gradient:.3g}",
        {True: "equal", False: "different", None: "-"}[replay.same],
    )


def _charts(numbers: Numbers) -> list[dict[str, Any]]:
    charts = []
    for title, read, log in _CURVES:
        series = [
            line
            for optimizer in sorted({step.optimizer for step in numbers.steps})
            if (line := _line(numbers, optimizer, read))
        ]
        if series:
            charts.append({"title": title, "across": "step", "log": log, "series": series})
    return charts


def _line(
    numbers: Numbers, optimizer: int, read: Callable[[StepNumbers], float | None]
) -> dict[str, Any] | None:
    steps = [
        (step.iteration, value)
        for step in numbers.steps
        if step.optimizer == optimizer and (value := read(step)) is not None
    ]
    if not steps:
        return None
    return {
        "arm": optimizer,
        "label": f"optimizer {optimizer}",
        "x": [iteration for iteration, _ in steps],
        "y": [value if math.isfinite(value) else None for _, value in steps],
        "last": steps[-1][0],
        "nonfinite": [iteration for iteration, value in steps if not math.isfinite(value)][:1],
        "source": f"{SOURCE}#evidence.numbers.steps",
    }


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
