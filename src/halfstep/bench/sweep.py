"""Turns the figures of one setting's values, one figure per value and round, into an outcome."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from halfstep.bench.outcome import RESULTS, Outcome
from halfstep.bench.spread import Faster, first_good_enough, is_faster, speed_ratios, spread
from halfstep.show.document import TableCell
from halfstep.show.units import ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfstep.bench.outcome import Subject
    from halfstep.bench.spread import Quartiles

ONE_ROUND = "One round gives no spread: --rounds 3 or more shows the noise."
QUARTILES = "The small figures are the lower and the upper quartile over the rounds."


@dataclass(frozen=True, slots=True)
class Quantity:
    """The quantity that is measured.

    Attributes:
        name: The name, with the unit.
        faster: Whether larger or smaller figures are faster.
        write: Formats a figure for people, without the unit.
    """

    name: str
    faster: Faster
    write: Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Sweep:
    """A setting and its values, the smallest first.

    Attributes:
        key: The name of the setting.
        values: The values, as text.
        quantity: The measured quantity.
    """

    key: str
    values: tuple[str, ...]
    quantity: Quantity

    def label(self, value: str) -> str:
        """Return the name of a value: "key=value" for a number, the value alone for a word."""
        return value if self._numbers is None else f"{self.key}={value}"

    def outcome(
        self, subject: Subject, figures: Sequence[Sequence[float]], notes: Sequence[str] = ()
    ) -> Outcome:
        """Return the outcome of the figures.

        Args:
            subject: The subject of the bench.
            figures: The figures of each value, one per round.
            notes: Further notes for the table.
        """
        faster = self.quantity.faster
        spreads = [spread(own) for own in figures]
        ratios = [spread(speed_ratios(own, figures[0], faster)) for own in figures]
        rounds = len(figures[0])
        rows = [
            (
                TableCell(value, value=value),
                self._cell(value, "figure", own, self.quantity.write),
                self._cell(value, "speed", times, ratio),
            )
            for value, own, times in zip(self.values, spreads, ratios, strict=True)
        ]
        return Outcome(
            subject=subject,
            headers=(self.key, self.quantity.name.replace(" ", "|", 1), "speed|x"),
            texts=1,
            rows=rows,
            recommendation=self._recommendation(figures, ratios),
            notes=(QUARTILES if rounds > 1 else ONE_ROUND, *notes),
            figures={
                "setting": self.key,
                "quantity": self.quantity.name,
                "faster": faster,
                "rows": {
                    value: {"figure": asdict(own), "speed": asdict(times), "rounds": list(all_)}
                    for value, own, times, all_ in zip(
                        self.values, spreads, ratios, figures, strict=True
                    )
                },
            },
            arms=("median", *(f"round {number + 1}" for number in range(rounds))),
            charts=self._charts(figures, spreads),
            bars=self._bars(spreads),
        )

    @property
    def _numbers(self) -> list[float] | None:
        """The values as numbers; None if they are words."""
        return [float(v) for v in self.values] if all(v.isdigit() for v in self.values) else None

    def _cell(
        self, value: str, key: str, quartiles: Quartiles, write: Callable[[float], str]
    ) -> TableCell:
        return TableCell(
            write(quartiles.median),
            spread=""
            if quartiles.is_exact
            else f"{write(quartiles.low)} to {write(quartiles.high)}",
            value=quartiles.median,
            source=f"{RESULTS}#rows.{value}.{key}.median",
        )

    def _recommendation(
        self, figures: Sequence[Sequence[float]], ratios: Sequence[Quartiles]
    ) -> str:
        faster = self.quantity.faster
        place = first_good_enough(figures, faster)
        first, chosen = self.label(self.values[0]), self.label(self.values[place])
        rest = figures[place + 1 :]
        if self._numbers is None:
            others = "no other is faster" if rest else ""
        elif not rest:
            others = "no larger value was tried"
        elif all(is_faster(figures[place], other, faster) for other in rest):
            others = "larger values are slower"
        else:
            others = "larger values do not help"
        of_first = "" if place == 0 else f"{ratio(ratios[place].median)}x of {first}"
        return f"{chosen}: {'; '.join(filter(None, (of_first, others)))}"

    def _charts(
        self, figures: Sequence[Sequence[float]], spreads: Sequence[Quartiles]
    ) -> list[dict[str, Any]]:
        numbers = self._numbers
        if numbers is None or len(numbers) == 1:
            return []
        lines = [("median", [quartiles.median for quartiles in spreads])]
        lines += [
            (f"round {number + 1}", list(figure))
            for number, figure in enumerate(zip(*figures, strict=True))
        ]
        series = [
            {"x": numbers, "y": y, "arm": arm, "label": label, "source": RESULTS, "nonfinite": []}
            for arm, (label, y) in enumerate(lines)
        ]
        title = f"{self.quantity.name} over {self.key}"
        return [{"title": title, "across": self.key, "series": series}]

    def _bars(self, spreads: Sequence[Quartiles]) -> list[dict[str, Any]]:
        if self._numbers is not None:
            return []
        most = max(quartiles.median for quartiles in spreads)
        return [
            {
                "label": value,
                "text": f"{self.quantity.write(quartiles.median)} {self.quantity.name}",
                "share": quartiles.median / most,
                "parts": [],
                "source": f"{RESULTS}#rows.{value}.figure.median",
            }
            for value, quartiles in zip(self.values, spreads, strict=True)
        ]
