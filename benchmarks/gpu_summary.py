"""Writes summary.md from the output folder of gpu.sh: the parts that failed, and the figures.

python benchmarks/gpu_summary.py FOLDER
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import feed

if TYPE_CHECKING:
    from collections.abc import Iterator


def summary(folder: Path) -> Iterator[str]:
    """Yield the lines of the summary."""
    yield "| part | seconds | exit code |"
    yield "| --- | --- | --- |"
    with (folder / "parts.tsv").open() as file:
        for part in csv.reader(file, delimiter="\t"):
            yield f"| {' | '.join(part)} |"
    tables = {"steps.json": steps, "doctor.json": doctor, "feed.json": feed.table}
    for name, table in tables.items():
        if (folder / name).exists():
            yield from ("", name, "", *table(json.loads((folder / name).read_text())))


def steps(document: dict[str, Any]) -> list[str]:
    """Return the table of gpu_steps.py: the measured figures, and the predictions of advise."""
    lines = [
        f"On {document['device']}; predicted for {document['predicted for'] or 'no GPU'}.",
        "",
        "| model | recipe | way | ms | x | GB at the peak | predicted ms | predicted GB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in document["rows"]:
        predicted = row["predicted"]
        time, memory = "-", "-"
        if predicted:
            seconds = predicted["predicted_seconds"]
            time = " ".join(f"{1e3 * seconds[name]:.1f}" for name in ("value", "low", "high"))
            memory = f"{predicted['predicted_memory_bytes'] / 1e9:.2f}"
        peak = "-" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e9:.2f}"
        lines.append(
            f"| {row['model']} | {row['recipe']} | {row['way']} | {row['milliseconds']:.2f} "
            f"| {row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f}) | {peak} "
            f"| {time} | {memory} |"
        )
    refused = [f"- {which}: {why}" for which, why in document["refused"].items()]
    return [*lines, "", *refused] if refused else lines


def doctor(document: dict[str, Any]) -> list[str]:
    """Return the table of gpu_doctor.py: the time of a step under doctor."""
    return [
        "| model | recipe | way | plain ms | x |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| {row['model']} | {row['recipe']} | {row['way']} | {row['plain_milliseconds']:.2f} "
            f"| {row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f}) |"
            for row in document["rows"]
        ),
    ]


def main() -> None:
    """Write the summary, and print it."""
    folder = Path(sys.argv[1])
    text = "\n".join(summary(folder)) + "\n"
    (folder / "summary.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
