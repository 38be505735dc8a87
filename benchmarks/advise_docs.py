"""Writes the errors of `halfstep advise` into its docs, from `results/advise_speed.json`.

python benchmarks/advise_docs.py
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from docs_table import put

if TYPE_CHECKING:
    from collections.abc import Iterator

RESULTS = Path(__file__).parent / "results" / "advise_speed.json"


def errors(results: dict[str, Any]) -> Iterator[str]:
    """Yield the table of errors."""
    left_out, test = results["refit"], results["test"]
    yield "| figure, on data that the constants were not fitted to | n | median | 90 % are under |"
    yield "| --- | --- | --- | --- |"
    families = left_out["families left out"]
    rows = [
        ("a family of models left out, RTX 3090, NCHW", families["nchw"]),
        ("the same, NHWC", families["nhwc"]),
        ("families tested once, constants of the others, NCHW", test["nchw"]["model"]),
        ("`a x FLOPs + b x bytes` on these", test["nchw"]["two constants"]),
        ("families tested once, NHWC", test["nhwc"]["model"]),
        ("`a x FLOPs + b x bytes` on these", test["nhwc"]["two constants"]),
        ("ResNet-50 and BERT, their GPU left out", left_out["one GPU left out"]),
        ("the same, its architecture left out", left_out["one architecture left out"]),
        (
            "speed-up of half over fp32 or TF32, same",
            left_out["speed-up, one GPU left out"],
        ),
        ("always saying 2x", left_out["speed-up, always 2x"]),
    ]
    for name, found in rows:
        yield f"| {name} | {found['n']} | {found['median']:.1%} | {found['p90']:.1%} |"


def cover(results: dict[str, Any]) -> Iterator[str]:
    """Yield what intervals and batches came to."""
    found, once = results["refit"]["coverage by intervals from other families"], results["test"]
    batch = results["largest batch"]
    yield (
        f"80 % intervals held {found['80']:.0%} of errors of families they were not made from, "
        f"90 % intervals {found['90']:.0%}; on the families tested once, those of the first fit "
        f"held {once['coverage']['80']:.0%} and {once['coverage']['90']:.0%}. The largest batch of "
        f"a card of 24 GB was the one that timm found for {batch['test']['in bracket']:.0%} of "
        f"{batch['test']['n']} models of families that no constant was fitted to."
    )


def models(results: dict[str, Any]) -> Iterator[str]:
    """Yield a table of every model, by family."""
    by_model: dict[tuple[str, str, int], dict[str, float]] = defaultdict(dict)
    for row in results["refit"]["models"]:
        ratio = row["predicted_ms"] / row["published_ms"]
        by_model[row["family"], row["model"], row["image_size"]][row["layout"]] = ratio
    yield "| family | model | pixels | NCHW | NHWC |"
    yield "| --- | --- | --- | --- | --- |"
    for (family, model, size), found in sorted(by_model.items()):
        shown = (f"{found[each]:.2f}" if each in found else "-" for each in ("nchw", "nhwc"))
        yield f"| {family} | {model} | {size} | {' | '.join(shown)} |"
    middle = [
        median(each[key] for each in by_model.values() if key in each) for key in ("nchw", "nhwc")
    ]
    yield f"| | the median | | {middle[0]:.2f} | {middle[1]:.2f} |"


def main() -> None:
    """Write the page's tables."""
    results = json.loads(RESULTS.read_text())
    put("advise-gpus.md", "errors", list(errors(results)))
    put("advise-gpus.md", "cover", list(cover(results)))
    put("advise-gpus.md", "models", list(models(results)))


if __name__ == "__main__":
    main()
