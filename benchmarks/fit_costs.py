"""Fits the constants of the cost model to published speeds, and measures its errors on others.

    python benchmarks/fit_costs.py --cache DIR [--data DIR] fit
    python benchmarks/fit_costs.py --cache DIR [--data DIR] score
    python benchmarks/fit_costs.py --cache DIR [--data DIR] refit

`fit` uses only the families of models that are not in the test set, and writes
`benchmarks/results/advise_fit.json`. The file contains three things: the constants, from a robust
regression, with priors, of the logarithms of step times and of speed-ups over fp32; the widths of
the intervals, from the errors on families and GPUs that were left out of a fit; and the list of
speeds in the test set that had a trace at that time.

`score` reads this file and predicts the test set. It gives separate errors for the speeds that had
no trace at the time of the fit, and lists the names of the speeds that still have none. The
committed results of `fit` and `score` are those of the cost model at the commit that is named in
them under "cost model"; at that commit, these commands reproduce them. "test of an earlier cost
model" contains the results of the model before that one.

`refit` fits to all families, and writes `src/halfstep/advise/predict/constants.json`, a part of
halfstep. Its errors are those of each family with constants that were fitted without that family.

Results go to `benchmarks/results/advise_speed.json`; `advise_docs.py` writes them into the docs.

The data are timm's published training speeds (`benchmarks/data/timm_train.csv`, Apache-2.0, from
huggingface/pytorch-image-models @ aa4b5850, `results/benchmark-train-amp-*`), and the logs of
Lambda's deeplearning-benchmark (lambdal/deeplearning-benchmark @ aa5addb6, `pytorch/results`). The
logs state no licence, so they are not copied here. `lambda_logs.csv` is made from them, and read
from `--data` if it is there. `published_steps.py` makes the traces; speeds without a trace are not
used.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from published_steps import Measurement, measurements, traced
from speeds.cases import Case, card, cases, folds, is_test, named, served_by, subset
from speeds.errors import (
    baseline,
    coverage,
    expected_errors,
    left_out,
    printed,
    speed_ups,
    summary,
    widths,
)
from speeds.regression import Fit

from halfstep.advise.predict import cost, interval, memory
from halfstep.advise.predict.cost import Constants
from halfstep.advise.predict.gpus import gpus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

HERE = Path(__file__).parent

RESULTS = HERE / "results" / "advise_speed.json"

FROZEN = HERE / "results" / "advise_fit.json"

LADDER = (512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
"""The batch sizes that timm's benchmark tries, from the largest down, until one fits."""


def fit(kept: Sequence[Case]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the constants with the intervals, and the errors on data left out of the fits."""
    fitted, age = Fit(kept).fitted()
    print(asdict(fitted), age, printed(summary(Fit(kept).errors(fitted))), flush=True)
    published = np.array([not case.measured.machine for case in kept])

    of_family = [case for case in kept if not case.measured.machine]
    groups = folds(kept)
    errors = np.full(len(kept), np.nan)
    everything = left_out(kept, groups, fitted, age)
    errors[published] = everything[published]
    of_gpu = left_out(kept, [card(case.measured.gpu) for case in kept], fitted, age)
    errors[~published] = of_gpu[~published]
    of_architecture = left_out(
        kept, [gpus()[case.measured.gpu].architecture for case in kept], fitted, age
    )[~published]
    logs = [case for case in kept if case.measured.machine]
    scales, _ = expected_errors(of_family, errors[published], fitted)
    expected = np.array([np.dot(interval.makeup(case.work, fitted), scales) for case in kept])
    pairs = speed_ups(logs, of_gpu[~published], expected[~published])
    beside = np.abs(errors) / expected
    cards = [card(case.measured.gpu) for case in logs]

    def of_logs(wrong: NDArray[np.float64]) -> dict[str, float]:
        return widths(np.abs(wrong) / expected[~published], cards)

    known, new = of_logs(of_gpu[~published]), of_logs(of_architecture)
    families = [case.measured.family for case in of_family]
    intervals = {
        "expected error": scales,
        "step": widths(beside[published], families),
        "speed-up": widths(np.abs(pairs.errors) / pairs.expected, pairs.gpus),
        "new architecture": {share: max(1.0, new[share] / known[share]) for share in new},
        "architectures": sorted({gpus()[case.measured.gpu].architecture for case in kept}),
    }
    found = {
        "fitted to": {
            "families": sorted({case.measured.family for case in kept}),
            "models": len(of_family),
            "logs": len(logs),
        },
        "families left out": {
            layout: summary(
                errors[
                    np.array([not c.measured.machine and c.measured.layout == layout for c in kept])
                ]
            )
            for layout in ("nchw", "nhwc")
        },
        "coverage by intervals from other families": coverage(of_family, errors[published], fitted),
        "one GPU left out": summary(of_gpu[~published]),
        "one architecture left out": summary(of_architecture),
        "speed-up, one GPU left out": summary(pairs.errors),
        "speed-up, always 2x": summary(pairs.twice),
        "models": [
            row(case, error, "left out")
            for case, error in zip(kept, errors, strict=True)
            if not case.measured.machine
        ],
    }
    return {"constants": asdict(fitted), "age of logs": age, "intervals": intervals}, found


def score(found: Sequence[Measurement], cache: Path, frozen: dict[str, Any]) -> dict[str, Any]:
    """Return the errors of frozen constants on the test set.

    Args:
        found: All published speeds.
        cache: The directory of the traces.
        frozen: The output of `fit`: constants, intervals, and the speeds that had a trace then.
    """
    published = [each for each in found if is_test(each)]
    # Of duplicates, `cases` keeps the first. Speeds that had a trace come first, because their
    # duplicates are not new.
    published.sort(key=lambda each: named(each) not in frozen["traced"])
    kept = cases([each for each in found if not is_test(each) and not each.machine], cache)
    test = cases(published, cache)
    fitted = Constants(**frozen["constants"])
    errors, naive = Fit(test).errors(fitted), np.full(len(test), np.nan)
    layouts = np.array([case.measured.layout for case in test])
    new = np.array([named(case.measured) not in frozen["traced"] for case in test])
    for layout in ("nchw", "nhwc"):
        here = layouts == layout
        naive[here] = baseline(
            [case for case in kept if case.measured.layout == layout], subset(test, here)
        )
    scales, times = frozen["intervals"]["expected error"], frozen["intervals"]["step"]
    expected = np.array([interval.makeup(case.work, fitted) for case in test]) @ scales

    def of(wanted: NDArray[np.bool_]) -> dict[str, Any]:
        sums = {
            layout: {
                "model": summary(errors[wanted & (layouts == layout)]),
                "two constants": summary(naive[wanted & (layouts == layout)]),
            }
            for layout in ("nchw", "nhwc")
        }
        covered = {
            share: float(np.mean((np.abs(errors) <= expected * width)[wanted]))
            for share, width in times.items()
        }
        return {**sums, "coverage": covered}

    untraced = [each for each in published if served_by(each, cache) is None]
    parts = {"new": new, "traced before the constants were frozen": ~new}
    return {
        **of(np.ones(len(test), dtype=np.bool_)),
        **{part: of(mask) for part, mask in parts.items() if mask.any()},
        "families": sorted({case.measured.family for case in test}),
        "published": len(published),
        "duplicates": len(published) - len(untraced) - len(test),
        "not traced": sorted(named(each) for each in untraced),
        "models": [
            row(case, error, "new" if first else "test")
            for case, error, first in zip(test, errors, new, strict=True)
        ],
    }


def brackets(found: Sequence[Measurement], cache: Path) -> dict[str, dict[str, float]]:
    """Return the share of models whose largest batch is predicted correctly.

    The prediction is correct if the published batch fits and the next larger one of `LADDER` does
    not. The part of the peak that is not held between steps grows in proportion to the batch. For a
    batch of 512, there is no next one.
    """
    hits: dict[str, list[bool]] = defaultdict(list)
    for asked in {each.trace_name: each for each in found if not each.machine}.values():
        if asked.batch not in LADDER or not (cache / f"{asked.trace_name}.json").exists():
            continue
        trace, room = traced(asked, cache), memory.usable(gpus()[asked.gpu])
        fits = memory.needed(trace) <= room
        if asked.batch < LADDER[0]:
            after = LADDER[LADDER.index(asked.batch) - 1]
            peak = trace.held + (trace.peak - trace.held) * after / asked.batch
            fits = fits and memory.needed(replace(trace, peak=round(peak))) > room
        hits["test" if is_test(asked) else "fitted to"].append(fits)
    return {
        part: {"n": len(each), "in bracket": float(np.mean(each))} for part, each in hits.items()
    }


def row(case: Case, error: float, split: str) -> dict[str, Any]:
    """Return the published and the predicted time of a step."""
    asked = case.measured
    return {
        "model": asked.model,
        "family": asked.family,
        "split": split,
        "layout": asked.layout,
        "image_size": asked.image_size,
        "batch": asked.batch,
        "gpu": asked.gpu,
        "published_ms": round(asked.seconds * 1e3, 2),
        "predicted_ms": round(asked.seconds * 1e3 * float(np.exp(error)), 2),
    }


def main() -> None:
    """Fit, score or refit, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=HERE / "data", help="where the CSV files are")
    parser.add_argument("--cache", type=Path, required=True, help="where traces are kept")
    parser.add_argument("what", choices=["fit", "score", "refit"])
    given = parser.parse_args()
    found = measurements(given.data)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if given.what == "fit":
        kept = cases([each for each in found if not is_test(each)], given.cache)
        written, results["fit"] = fit(kept)
        traced_by_now = [each for each in found if is_test(each) and served_by(each, given.cache)]
        written["traced"] = sorted(map(named, traced_by_now))
        FROZEN.write_text(json.dumps(_rounded(written), indent=1) + "\n")
    elif given.what == "score":
        results["test"] = score(found, given.cache, json.loads(FROZEN.read_text()))
        results["largest batch"] = brackets(found, given.cache)
    else:
        written, results["refit"] = fit(cases(found, given.cache))
        cost.FILE.write_text(json.dumps(_rounded(written), indent=2) + "\n")
    for part, each in results.items():
        print(part, json.dumps({k: v for k, v in each.items() if k != "models"}, indent=1))
    RESULTS.write_text(json.dumps(_rounded(results), indent=1) + "\n")


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) and abs(value) < 10 else value


if __name__ == "__main__":
    main()
