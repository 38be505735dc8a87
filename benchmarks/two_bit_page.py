"""Writes the tables of docs/experiments/2-bit-activations.md from committed results.

    python benchmarks/two_bit_page.py

activations.py writes `results/activations.json`, and batch_that_fits.py writes
`results/batch_that_fits.json`. The accuracies are from `halfstep compare`; copies of its
`comparison.json` are in the folder of the page. A table without results stays unchanged.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docs_table

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = "experiments/2-bit-activations.md"
RESULTS = Path(__file__).parent / "results"
COMPARISONS = docs_table.DOCS / "experiments" / "2-bit-activations"
DATA = {"digits": "digits", "cifar10": "CIFAR-10"}


def figures(document: dict[str, Any]) -> Iterator[str]:
    """Yield the table of bytes, time and gradients."""
    yield "| model | stored | less than fp16 | less than fp32 | step time ratio | cosine |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    for model, found in document["models"].items():
        for way, ratio in found["times_less_than_fp16"].items():
            gradients = found["gradients"].get(way)
            cells = (
                model,
                way,
                f"{ratio:.1f}x",
                f"{found['times_less_than_fp32_as_actnn_counts'][way]:.1f}x",
                f"{found['time_over_exact'][way]['median']:.2f}",
                f"{gradients['cosine']:.3f}" if gradients else "",
            )
            yield f"| {' | '.join(cells)} |"


def batches(document: dict[str, Any]) -> Iterator[str]:
    """Yield the table of the largest batches."""
    ways = list(next(iter(document["models"].values()))["batches"])
    yield f"| model | cap | {' | '.join(ways)} |"
    yield "| --- | --- " + "| ---: " * len(ways) + "|"
    for model, found in document["models"].items():
        largest = " | ".join(str(found["batches"][way]["fits"]) for way in ways)
        yield f"| {model}, {found['pixels']} pixels | {found['cap_mib']} MiB | {largest} |"


def accuracies(of: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield the table of accuracies, and of their differences to fp32."""
    yield "| data | recipe | best accuracy % | minus fp32, points | 95 % interval | seeds |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    for title, comparison in of.items():
        for row in comparison["rows"]:
            if row["seed"] is not None:
                continue
            best, change = row["measures"]["best_accuracy"], row["difference"]
            is_base = row["recipe"] == "fp32"
            cells = (
                title,
                row["recipe"],
                f"{100 * best['mean']:.2f}",
                "" if is_base else f"{100 * change['mean']:+.2f}",
                "" if is_base else f"{100 * change['low']:+.2f} to {100 * change['high']:+.2f}",
                str(best["seeds"] if is_base else change["seeds"]),
            )
            yield f"| {' | '.join(cells)} |"


def tables() -> dict[str, list[str]]:
    """Return the lines of each table, by its mark in the page."""
    files = {title: COMPARISONS / f"{name}.json" for name, title in DATA.items()}
    compared = {
        title: json.loads(file.read_text()) for title, file in files.items() if file.exists()
    }
    found = {"accuracies": [*accuracies(compared)]}
    for mark, name, table in (
        ("figures", "activations.json", figures),
        ("batches", "batch_that_fits.json", batches),
    ):
        if (RESULTS / name).exists():
            found[mark] = [*table(json.loads((RESULTS / name).read_text()))]
    return found


if __name__ == "__main__":
    for mark, lines in tables().items():
        docs_table.put(PAGE, mark, lines)
