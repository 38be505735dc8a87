"""Predicts the cost of a comparison's rows on GPUs that are not in this machine.

`halfstep compare` calls it. Each row is traced once for all GPUs. Predictions that an earlier call
made from the same settings with the same versions are read from the comparison's directory.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from halfstep.advise.predict import cost, measured
from halfstep.advise.predict.forecast import SHARE, Forecaster
from halfstep.advise.predict.gpus import gpu
from halfstep.advise.subject import of_config
from halfstep.compare.cells.directory import COMPARISON, read, versions
from halfstep.compare.plan.grid import Arm
from halfstep.compare.rows.predicted import Figure, Predicted, Prediction
from halfstep.errors import in_a_line
from halfstep.recipe import recipe as find_recipe
from halfstep.train.config.schema import Config

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfstep.advise.predict.gpus import Gpu
    from halfstep.advise.predict.interval import Interval
    from halfstep.compare.plan.grid import Cell, Plan

_DECIDED_BY_THE_RUN = ("seed", "device", "epochs", "max_steps", "probes", "doctor")
"""Settings that do not change the operators of a step."""


def predict(
    plan: Plan, there: Sequence[Gpu] | None, tell: Callable[[str], None] = lambda _: None
) -> tuple[Prediction, ...]:
    """Predict every row of a comparison on some GPUs.

    If a row cannot be predicted, its prediction contains the reason, and the comparison continues.

    Args:
        plan: The comparison.
        there: The GPUs; None for an H100 if the runs use a CPU, and none otherwise.
        tell: Called with a description of the next trace.
    """
    if there is None:
        there = (gpu("h100"),) if plan.grid.device == "cpu" else ()
    known, operators = _known(plan), measured.every()
    model = [file.read_text() for file in (cost.FILE, *measured.files())]
    cells = {cell.arm: cell for cell in reversed(plan.grid.cells)}
    arms = [arm for arm in plan.grid.arms if arm.recipe not in plan.grid.checks]
    one_of_each_point = {arm.point: arm for arm in arms}.values()
    forecasters: dict[Any, Forecaster] = {}

    def one(arm: Arm, cell: Cell, where: Gpu) -> Predicted:
        key = _fingerprint(arm, cell, where, model)
        return known.get(key) or _predict(arm, cell, where, key, forecasters, tell)

    found = {(arm, each.key): one(arm, cells[arm], each) for arm in arms for each in there}
    return tuple(
        Prediction(
            each.key,
            each.name,
            SHARE,
            over,
            tuple(found[arm, each.key] for arm in arms),
            tuple(
                reference
                for arm in one_of_each_point
                if Arm(over, arm.point) not in cells
                and (reference := one(Arm(over, arm.point), cells[arm], each)).seconds
            ),
            measured.caution(measured.nearest(operators, each), each),
        )
        for each, over in ((each, each.reference) for each in there)
    )


def _predict(
    arm: Arm,
    cell: Cell,
    gpu: Gpu,
    fingerprint: str,
    forecasters: dict[Any, Forecaster],
    tell: Callable[[str], None],
) -> Predicted:
    is_run = arm == cell.arm
    recipe = find_recipe(cell.config["recipe"]) if is_run else find_recipe(arm.recipe)
    if reason := recipe.untraceable_on(gpu):
        return Predicted(arm, fingerprint, reason=reason)
    try:
        if arm.point not in forecasters:
            subject = of_config(Config.model_validate(cell.config), batches=1)
            forecasters[arm.point] = Forecaster(subject, largest=False, tell=tell)
        forecaster = forecasters[arm.point]
        each = forecaster.predict(recipe, gpu) if is_run else forecaster.reference(gpu)
    except Exception as error:  # noqa: BLE001  # a user's model may raise anything
        said = str(error) if isinstance(error, ValueError) else in_a_line(error)
        return Predicted(arm, fingerprint, reason=said)
    if each.lacks:
        return Predicted(arm, fingerprint, reason=f"{gpu.name} has no units for {each.lacks}")
    return Predicted(
        arm,
        fingerprint,
        _figure(each.seconds),
        each.speed_up and _figure(each.speed_up),
        each.memory,
        each.bound,
        each.verdict,
        each.unknown,
    )


def _figure(interval: Interval) -> Figure:
    return Figure(*interval)


def _fingerprint(arm: Arm, cell: Cell, gpu: Gpu, model: Sequence[str]) -> str:
    settings = {
        key: value for key, value in cell.settings.items() if key not in _DECIDED_BY_THE_RUN
    }
    if arm != cell.arm:
        settings["recipe"] = f"the reference {arm.recipe}"
    text = json.dumps([settings, asdict(gpu), versions(), model], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _known(plan: Plan) -> dict[str, Predicted]:
    """Return the predictions of an earlier call, by fingerprint."""
    written = read(plan.directory / COMPARISON) or {}
    try:
        rows = [
            Predicted.from_json(row)
            for each in written.get("predicted", {}).values()
            for row in (*each["rows"], *each["references"])
        ]
    except (KeyError, TypeError, AttributeError):  # written by another release
        return {}
    return {row.fingerprint: row for row in rows if not row.reason}
