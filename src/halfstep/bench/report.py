"""The page of a bench: the table, charts or bars, and the environment of the measurement.

It uses the same style, tables and charts as the page of a comparison.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from halfstep.bench.outcome import RESULTS
from halfstep.show.document import CHART, document

if TYPE_CHECKING:
    from halfstep.bench.outcome import Outcome

_HERE = Path(__file__).parent
_SCRIPTS = ("state.js", "tables.js")
_SCRIPTS_OF_CHARTS = (*CHART, _HERE / "charts.js", "legend.js")


def page(outcome: Outcome) -> str:
    """Return the report as one HTML document."""
    titles = outcome.titles
    return document(
        _HERE / "report.html",
        scripts=(*_SCRIPTS, *(_SCRIPTS_OF_CHARTS if outcome.charts else ())),
        data={
            "arms": [{"label": arm, "rehearsed": False} for arm in outcome.arms],
            "charts": list(outcome.charts),
        },
        title=outcome.subject.title,
        outcome=outcome,
        headers=titles,
        text_headers=titles[: outcome.texts],
        rows=[
            [replace(cell, label=label) for cell, label in zip(row, titles, strict=True)]
            for row in outcome.rows
        ],
        results=RESULTS,
        environment=[
            {
                "name": name,
                "value": value,
                "source": f"{RESULTS}#environment.{name}",
                "differs": "False",
            }
            for name, value in outcome.subject.environment.items()
        ],
        notes=outcome.notes,
    )
