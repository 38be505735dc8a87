"""Turns the times of the parts of steps into a row per recipe and part, and a recommendation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from halfstep.bench.marks import PARTS, total
from halfstep.bench.outcome import RESULTS, Outcome
from halfstep.bench.spread import first_good_enough, speed_ratios, spread
from halfstep.bench.sweep import ONE_ROUND, QUARTILES
from halfstep.plurals import counted
from halfstep.show.document import TableCell
from halfstep.show.table import REHEARSED
from halfstep.show.units import MISSING, milliseconds, ratio

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfstep.bench.marks import Seconds
    from halfstep.bench.outcome import Subject
    from halfstep.bench.spread import Quartiles

WHOLE = "step"
NAMES = {
    "data_wait": "data wait",
    "prepare": "prepare",
    "forward": "forward",
    "backward": "backward",
    "unscale_clip": "unscale, clip",
    "optimizer": "optimizer",
    "rest": "rest",
    WHOLE: "whole step",
}
WAITS = 0.1
"""Share of a step spent waiting for data above which the recommendation is about data.workers."""

_MEANING = (
    "data wait: the wait for the next batch. prepare: copying the batch to the device, normalising "
    "and mixing it. forward: includes the loss. unscale, clip: dividing the gradients by the loss "
    "scale, their norm and clipping. rest: updating the loss scale, master weights, zeroing "
    "gradients, sums for the log."
)


@dataclass(frozen=True, slots=True)
class Dissection:
    """The measured steps of every recipe, by round.

    Attributes:
        recipes: The steps of each round, for each recipe.
        rehearsed: The parts of each recipe that are rehearsed, as text.
        warmup: The number of steps before them that were left out.
    """

    recipes: Mapping[str, Sequence[Sequence[Seconds]]]
    rehearsed: Mapping[str, Sequence[str]]
    warmup: int

    def outcome(self, subject: Subject) -> Outcome:
        """Return the table, the charts, and the recommendation."""
        several = len(self.recipes) > 1
        rows = [row for name in self.recipes for row in self._rows(name, several=several)]
        headers = ("recipe", "part", "median|ms", "p95|ms", "share|%")
        return Outcome(
            subject=subject,
            headers=(*headers, "speed|x") if several else headers,
            texts=2,
            rows=rows,
            recommendation=self._recommendation(),
            notes=self._notes(several=several),
            figures={
                "warmup": self.warmup,
                "rows": {
                    name: {part: self._figures(name, part) for part in (*PARTS, WHOLE)}
                    for name in self.recipes
                },
                "steps": {name: list(map(list, rounds)) for name, rounds in self.recipes.items()},
            },
            arms=tuple(self.recipes),
            charts=self._charts(),
            bars=self._bars(),
        )

    def _seconds(self, name: str, part: str) -> list[list[float]]:
        """Return the seconds of a part, or of whole steps, for each round."""
        return [
            [total(step) if part == WHOLE else step[part] for step in round_]
            for round_ in self.recipes[name]
        ]

    def _share(self, name: str, part: str) -> float:
        return float(np.sum(self._seconds(name, part)) / np.sum(self._seconds(name, WHOLE)))

    def _speed(self, name: str, part: str) -> Quartiles | None:
        """Return the speed-up of a part over the first recipe; None if a median time is 0."""
        first = next(iter(self.recipes))
        own, base = (
            np.median(self._seconds(setting, part), axis=1).tolist() for setting in (name, first)
        )
        return spread(speed_ratios(own, base, "less")) if min(*own, *base) > 0 else None

    def _figures(self, name: str, part: str) -> dict[str, Any]:
        seconds = np.concatenate(self._seconds(name, part))
        speed = self._speed(name, part)
        return {
            "median_s": float(np.median(seconds)),
            "p95_s": float(np.quantile(seconds, 0.95)),
            "share": self._share(name, part),
            "speed": None if speed is None else asdict(speed),
        }

    def _rows(self, name: str, *, several: bool) -> list[tuple[TableCell, ...]]:
        rows = []
        mark = f" {REHEARSED}" if self.rehearsed[name] else ""
        for part in (*PARTS, WHOLE):
            figures = self._figures(name, part)
            source = f"{RESULTS}#rows.{name}.{part}"
            row = [
                TableCell(name + mark, value=name),
                TableCell(NAMES[part], value=NAMES[part]),
                *(
                    TableCell(
                        milliseconds(figures[key]), value=figures[key], source=f"{source}.{key}"
                    )
                    for key in ("median_s", "p95_s")
                ),
                TableCell(
                    f"{100 * figures['share']:.1f}",
                    value=figures["share"],
                    source=f"{source}.share",
                ),
            ]
            rows.append((*row, self._speed_cell(name, part, source)) if several else tuple(row))
        return rows

    def _speed_cell(self, name: str, part: str, source: str) -> TableCell:
        speed = self._speed(name, part)
        if speed is None:
            return TableCell(MISSING)
        return TableCell(
            ratio(speed.median),
            spread="" if speed.is_exact else f"{ratio(speed.low)} to {ratio(speed.high)}",
            value=speed.median,
            source=f"{source}.speed.median",
        )

    def _recommendation(self) -> str:
        names = list(self.recipes)
        medians = [np.median(self._seconds(name, WHOLE), axis=1).tolist() for name in names]
        place = first_good_enough(medians, "less")
        chosen, first = names[place], names[0]
        speed = self._speed(chosen, WHOLE)
        text = f"recipe={chosen}: "
        if len(names) == 1:
            text = f"{chosen}: "
        elif place == 0:
            text += "no other recipe is faster; "
        elif speed is not None:
            text += f"{ratio(speed.median)}x of {first}; "
        waiting = self._share(chosen, "data_wait")
        if waiting >= WAITS:
            return (
                f"{text}data wait takes {100 * waiting:.0f} % of a step: halfstep bench loader "
                "finds the best data.workers"
            )
        largest = max(PARTS, key=lambda part: self._share(chosen, part))
        return (
            f"{text}{NAMES[largest]} takes {100 * self._share(chosen, largest):.0f} % of a step "
            f"and data wait {100 * waiting:.0f} %, so more data.workers would not help"
        )

    def _notes(self, *, several: bool) -> tuple[str, ...]:
        rounds = next(iter(self.recipes.values()))
        steps = f"{counted(len(rounds[0]), 'step')} after {counted(self.warmup, 'warm-up step')}"
        lines = [f"{counted(len(rounds), 'round')} of {steps}.", _MEANING]
        if several:
            lines.append(QUARTILES if len(rounds) > 1 else ONE_ROUND)
        for name, reasons in self.rehearsed.items():
            if reasons:
                lines.append(
                    f"{REHEARSED} {name}: {'; '.join(reasons)}. Its speed here is not its speed on "
                    "hardware that supports the format."
                )
        return tuple(lines)

    def _bars(self) -> list[dict[str, Any]]:
        whole = {name: float(np.mean(self._seconds(name, WHOLE))) for name in self.recipes}
        most = max(whole.values())
        return [
            {
                "label": name,
                "text": f"{milliseconds(mean)} ms a step on average",
                "share": mean / most,
                "source": f"{RESULTS}#rows.{name}.{WHOLE}.median_s",
                "parts": [
                    {
                        "name": part,
                        "label": NAMES[part],
                        "share": self._share(name, part) * mean / most,
                        "text": f"{100 * self._share(name, part):.1f} %",
                        "source": f"{RESULTS}#rows.{name}.{part}.share",
                    }
                    for part in PARTS
                ],
            }
            for name, mean in whole.items()
        ]

    def _charts(self) -> list[dict[str, Any]]:
        """Return a chart for whole steps and each part, with a line for each recipe and round."""
        several = len(next(iter(self.recipes.values()))) > 1
        return [
            {
                "title": NAMES[part].capitalize(),
                "unit": "ms",
                "series": [
                    {
                        "x": list(range(self.warmup + 1, self.warmup + 1 + len(seconds))),
                        "y": [float(f"{1000 * second:.4g}") for second in seconds],
                        "arm": arm,
                        "label": f"{name} round {number + 1}" if several else name,
                        "source": f"{RESULTS}#steps.{name}",
                        "nonfinite": [],
                    }
                    for arm, name in enumerate(self.recipes)
                    for number, seconds in enumerate(self._seconds(name, part))
                ],
            }
            for part in (WHOLE, *PARTS)
        ]
