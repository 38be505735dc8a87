"""The page of an answer: the recipe to use, the reasons against others, exponent histograms."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfstep import yaml_text
from halfstep.advise.choose.show import (
    FIRST_SCALE,
    ROUNDING,
    SETTLED,
    assumed,
    chosen,
    module_text,
    noise,
    not_examined,
    reasons,
    steps,
    verdict,
    with_gpus,
)
from halfstep.advise.report.strips import HEIGHT, Axis
from halfstep.advise.table import MARKED, cautions, intervals, largest_batch
from halfstep.show import units
from halfstep.show.document import TableCell, document

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfstep.advise.answer import Answer
    from halfstep.advise.choose.advice import Advice
    from halfstep.advise.choose.trial import Trial
    from halfstep.advise.predict.forecast import Forecast
    from halfstep.advise.predict.interval import Interval

SOURCE = "advice.json"
FIRST_SITES = 12
"""Number of operators whose histograms are shown at first, besides those of exceptions; the others
are shown on demand."""
FIRST_GPUS = 2
"""Number of GPUs whose predicted costs are shown at first."""
MARK = "≈"
"""The sign before every predicted figure."""
_TEMPLATE = Path(__file__).parent / "page.html"


def _predicted(costs: Sequence[Forecast]) -> list[str]:
    """Say what the predicted figures are, and how exact."""
    source = "from the operators of one training step and the GPU's datasheet: nothing was run"
    exact = f"{intervals(costs)}; memory has no interval"
    return [f"{MARK} predicted, {source}. {exact}.", MARKED, *cautions(costs)]


def page(found: Answer) -> str:
    """Return an answer as one HTML document."""
    advice = found.advice
    return document(
        _TEMPLATE,
        scripts=("state.js", "tables.js"),
        data={},
        title=f"{found.subject.name}: which precision?",
        summary=_summary(found),
        depends=list(filter(None, (assumed(found), not_examined(found)))),
        source=SOURCE,
        chosen=[
            {
                "said": chosen(choice, advice),
                "kind": "use" if choice.best else "keep" if choice.reference.fits else "broken",
                "left": choice.left,
                "at": at,
            }
            for at, choice in enumerate(found.choices)
        ],
        recipes=[_recipe(at, trial, advice) for at, trial in enumerate(advice.trials)]
        if advice
        else [],
        verified=[
            {"name": name, "settled": SETTLED[each.settled], "said": each.said}
            for name, each in found.verified.items()
        ],
        costs=_costs(found),
        configs=[
            {
                "name": name,
                "text": f"# {with_gpus(name, found)}\n{yaml_text.dump({'recipe': spec}).rstrip()}",
            }
            for name, spec in {
                **{trial.base: trial.spec for trial in found.recommended},
                **found.references,
            }.items()
        ],
        exponents=_exponents(advice) if advice else None,
        height=HEIGHT,
        first_gpus=FIRST_GPUS,
        environment=[],
        notes=[
            *([ROUNDING, FIRST_SCALE] if advice else []),
            *(_predicted(found.costs) if found.costs else []),
        ],
    )


def _summary(found: Answer) -> str:
    advice = found.advice
    if advice is None:
        return "no recipe was examined" if found.unexamined else "only the cost was predicted"
    return (
        f"{steps(found)}; {noise(advice)}; {advice.passes:.0f} forward and backward passes in all"
    )


def _recipe(at: int, trial: Trial, advice: Advice) -> dict[str, Any]:
    damage = math.inf if trial.rehearsal is None else trial.rehearsal.gradient_damage
    bits, where = trial.headroom
    module = f"in {module_text(where)}"
    scaling = trial.recipe.scaling
    source = f"{SOURCE}#recipes.{at}."
    return {
        "name": trial.base,
        "kind": "broken" if trial.rejected else "use",
        "safe": verdict(trial, advice),
        "reasons": reasons(trial, advice),
        "cells": [
            _cell(len(trial.exceptions), "in fp32", f"{source}exceptions", str),
            _cell(damage, "rounding error", f"{source}gradient_damage", units.small_share),
            _cell(
                scaling.init if scaling else math.inf,
                "first loss scale",
                f"{source}first_loss_scale",
                "{:g}".format,
            ),
            _cell(bits, "headroom, bits", f"{source}headroom_bits", "{:.0f}".format, module),
        ],
    }


def _cell(
    value: float, label: str, source: str, write: Callable[[Any], str], spread: str = ""
) -> TableCell:
    if not math.isfinite(value):
        return TableCell(units.MISSING, label=label)
    return TableCell(write(value), spread, value, label, source)


def _costs(found: Answer) -> list[dict[str, Any]]:
    """Return a table for each GPU; every header and figure says that it is predicted."""
    tables: dict[str, dict[str, Any]] = {}
    for at, each in enumerate(found.costs):
        table = tables.setdefault(
            each.gpu.key,
            {
                "id": f"cost-{each.gpu.key}",
                "title": f"predicted, {each.gpu.name}, {each.samples} samples a step, speed over "
                f"{each.gpu.reference}",
                "rows": [],
            },
        )
        table["rows"].append({"name": each.recipe, "cells": _cost(at, each)})
    return list(tables.values())


def _cost(at: int, each: Forecast) -> list[TableCell]:
    source = f"{SOURCE}#predicted.rows.{at}."
    return [
        *_times(each, source),
        TableCell(
            f"{MARK}{each.memory / 2**30:.1f}",
            value=each.memory,
            label=f"{MARK} GiB",
            source=f"{source}predicted_memory_bytes",
        ),
        TableCell(
            largest_batch(each, MARK),
            value=each.largest_batch,
            label=f"{MARK} largest batch",
            source=f"{source}predicted_largest_batch",
        ),
        TableCell(
            ", ".join(each.remarks),
            value=each.bound,
            label="predicted bound by",
            source=f"{source}predicted_bound",
        ),
    ]


def _times(each: Forecast, source: str) -> list[TableCell]:
    """Return the cells of time and speed-up; both are unknown if the GPU lacks the format."""
    labels = f"{MARK} ms/step", f"{MARK} speed x"
    if each.lacks:
        return [TableCell(units.MISSING, label=label) for label in labels]
    seconds = _interval(
        each.seconds, labels[0], f"{source}predicted_seconds", units.predicted_milliseconds
    )
    if each.speed_up is None:
        return [seconds, TableCell("1", value=1.0, label=labels[1])]
    return [
        seconds,
        _interval(each.speed_up, labels[1], f"{source}predicted_speed_up", units.ratio),
    ]


def _interval(given: Interval, label: str, source: str, write: Callable[[float], str]) -> TableCell:
    spread = f"[{write(given.low)}, {write(given.high)}]"
    return TableCell(f"{MARK}{write(given.value)}", spread, given.value, label, f"{source}.value")


def _exponents(advice: Advice) -> dict[str, Any]:
    recorded = advice.recorded
    axis = Axis.of([*recorded.forward.values(), *recorded.backward.values()])
    excepted: dict[str, list[str]] = {}
    for trial in advice.safe:
        for pattern in trial.exceptions:
            excepted.setdefault(pattern, []).append(trial.base)
    sites = list(recorded.forward)
    first = {*[site for site in sites if site.pattern in excepted], *sites[:FIRST_SITES]}
    return {
        "width": axis.width,
        "ticks": axis.ticks(),
        "ranges": axis.ranges(),
        "sites": [
            {
                "name": site.pattern,
                "line": _short(recorded.lines.get(site, "")),
                "excepted": ", ".join(excepted.get(site.pattern, ())),
                "first": site in first,
                "forward": axis.strip(histogram),
                "backward": axis.strip(recorded.backward.get(site)),
            }
            for site, histogram in recorded.forward.items()
        ],
    }


def _short(line: str) -> str:
    file, _, number = line.rpartition(":")
    return f"{Path(file).name}:{number}" if file else ""
