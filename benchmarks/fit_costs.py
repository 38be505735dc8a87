"""Fits the cost model's constants to published speeds, and says how well it does on others.

    python benchmarks/fit_costs.py --cache DIR [--data DIR] fit
    python benchmarks/fit_costs.py --cache DIR [--data DIR] score
    python benchmarks/fit_costs.py --cache DIR [--data DIR] refit

`fit` writes `benchmarks/results/advise_fit.json`: constants by robust regression of the logarithms
of steps' times and of speed-ups over fp32, with priors, on the families of models that are fitted
to; the widths of intervals, from errors on families and GPUs that were left out of a fit each; and
which speeds of the other families had a trace by then. `score` reads it and predicts these other
families: the speeds that had no trace yet apart from the others, and those that have none still by
their names. The committed results of both are of an older structure of the cost model, at the
commit that "cost model" names in them, where these commands give them again. `refit` fits to all
families and writes `src/halfstep/advise/constants.json`, which is what ships; its errors are of
each family under constants that were fitted without it. Results go to
`benchmarks/results/advise_speed.json`, and from there to the docs by `advise_docs.py`.

The data: timm's published training speeds (`benchmarks/data/timm_train.csv`, Apache-2.0, from
huggingface/pytorch-image-models @ aa4b5850, `results/benchmark-train-amp-*`), and the logs of
Lambda's deeplearning-benchmark (lambdal/deeplearning-benchmark @ aa5addb6, `pytorch/results`),
which state no licence and are therefore not copied here: `lambda_logs.csv` is made from them, and
read from `--data` where it is there. Traces are made by `published_steps.py`; only what is traced
is used.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from published_steps import Measurement, measurements, traced
from scipy.optimize import least_squares, nnls

from halfstep.advise import cost, interval, memory
from halfstep.advise.cost import NAMES, Constants
from halfstep.advise.gpus import gpus
from halfstep.advise.workload import Workload, joined, workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from halfstep.advise.trace import Trace

PRIORS = Constants(
    half=1.0, tf32=0.8, fp32=0.8, winograd=1.5, ramp=64, weight=0.85, load=0.4, bandwidth=0.85,
    operands=0.7, norm=0.8, row_norm=0.6, softmax=0.75, copy=0.8, depthwise=0.45,
    depthwise_last=0.35, depthwise_weight=0.25,
    depthwise_weight_last=0.35, channels=2.0, grouped=1.0, grouped_last=1.0,
    odd_groups=0.6, odd_groups_last=0.2, odd_width=24, transposes=0.9,
    transposes_tf32=0.5, cache=0.1, accesses=8.0, narrow=0.7, kernel=3.0, host=9.0,
)  # fmt: skip
"""What is believed of the constants before any measurement: figures of the roofline literature and
of cuDNN's and PyTorch's own kernels, in round numbers."""

SPREAD = {
    "winograd": 0.2,
    "host": 0.1,
    "kernel": 0.3,
    "copy": 0.15,
    "operands": 0.5,
    "load": 0.5,
    "cache": 0.5,
}
"""How sure: the standard deviation of a constant's logarithm, 0.3 where nothing is said."""

FOLDS = 6
"""Groups of families, each left out of a fit."""

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "advise_speed.json"
FROZEN = HERE / "results" / "advise_fit.json"

_STEP = 1e-3
_LARGE, _SMALL = 0.5, 0.02

NOISE = 0.08
"""Errors up to which the regression is of squares; beyond, it is of absolute values."""

PAIRED = 2**-0.5
"""Weight of a speed-up's error beside a step's: as the difference of two, it has twice the variance
where they are independent."""


@dataclass(frozen=True)
class Case:
    """A measurement with what predicts it."""

    measured: Measurement
    work: Workload


def cases(found: Sequence[Measurement], cache: Path) -> list[Case]:
    """Return measurements with their traces' columns, those with a trace alone, duplicates once."""
    traces: dict[str, Trace | None] = {}
    made = []
    for each in found:
        name = each.trace_name
        if name not in traces:
            traces[name] = _trace(each, cache)
        trace = traces[name]
        if trace is not None:
            tf32 = each.precision != "fp32"
            made.append(Case(each, workload(trace.calls, gpus()[each.gpu], tf32=tf32)))
    return _once(made)


def _once(found: Sequence[Case]) -> list[Case]:
    """Count models that were published under several names once: same step, nearly same speed."""
    kept: dict[Any, Case] = {}
    for case in found:
        asked, work = case.measured, case.work
        key = (asked.machine, asked.gpu, asked.layout, asked.precision, asked.batch, asked.family)
        step = (len(work), float(work.flops @ work.count), float(work.moved @ work.count))
        kept.setdefault((*key, *step, f"{asked.seconds:.2g}"), case)
    return list(kept.values())


def _trace(asked: Measurement, cache: Path) -> Trace | None:
    kept = _kept(asked, cache)
    if kept is None:
        return None
    trace = traced(kept, cache)
    if kept.layout == asked.layout:
        return trace
    calls = tuple(replace(c, op=replace(c.op, channels_last=True)) for c in trace.calls)
    return replace(trace, calls=calls)


def _kept(asked: Measurement, cache: Path) -> Measurement | None:
    """Return the measurement whose trace serves: the same operators in NCHW serve NHWC."""
    for each in (asked, replace(asked, layout="nchw")):
        if (cache / f"{each.trace_name}.json").exists():
            return each
    return None


class Fit:
    """Cases whose times are computed together."""

    def __init__(self, chosen: Sequence[Case]) -> None:
        self.work = joined([case.work for case in chosen])
        lengths = [len(case.work) for case in chosen]
        self.starts = np.cumsum([0, *lengths[:-1]])
        self.measured = np.array([case.measured.seconds for case in chosen])
        self.old = np.array([_is_old(case.measured) for case in chosen])
        self.weights = np.sqrt(_weights(chosen))
        self.full, self.half = np.array(paired(chosen), dtype=np.intp).reshape(-1, 2).T

    def seconds(self, fitted: Constants) -> NDArray[np.float64]:
        """Return the predicted time of each case."""
        found = cost.kernels(self.work, fitted)
        device = np.add.reduceat(found.total * self.work.count, self.starts)
        launches = np.add.reduceat(self.work.launches * self.work.count, self.starts)
        return cost.with_host(device, launches * fitted.host * 1e-6)

    def errors(self, fitted: Constants, age: float = 1.0) -> NDArray[np.float64]:
        """Return the logarithms of predicted over measured time."""
        slower = np.where(self.old, age, 1.0)
        return np.log(self.seconds(fitted) * slower / self.measured)

    def slopes(self, start: Constants, age: float) -> NDArray[np.float64]:
        """Return how much each error changes with the logarithm of each constant."""
        at = self.errors(start, age)
        columns = []
        for name in NAMES:
            moved = replace(start, **{name: getattr(start, name) * np.exp(_STEP)})
            columns.append((self.errors(moved, age) - at) / _STEP)
        return np.stack([*columns, self.old.astype(np.float64)], axis=1)

    def fitted(
        self,
        start: Constants = PRIORS,
        age: float = 1.08,
        rounds: int = 30,
        kept: NDArray[np.bool_] | None = None,
        slopes: NDArray[np.float64] | None = None,
    ) -> tuple[Constants, float]:
        """Return the constants, and the factor of old logs, after some rounds of regression.

        Residuals are the errors of steps, those of speed-ups, and the distance from the priors.

        Args:
            start: Where to begin.
            age: The same of the factor of old logs.
            rounds: How many at most.
            kept: Which cases to fit to; all by default.
            slopes: Those at the start, used in every round; new ones in each by default.
        """
        prior = np.log([*(getattr(PRIORS, name) for name in NAMES), 1.08])
        spread = np.array([*(SPREAD.get(name, 0.3) for name in NAMES), 0.05])
        first = np.log([*(getattr(start, name) for name in NAMES), age])
        weights = self.weights if kept is None else self.weights * kept
        of_pairs = PAIRED * np.minimum(weights[self.full], weights[self.half])

        def weighed(each: NDArray[np.float64]) -> list[NDArray[np.float64]]:
            differences = each[self.full] - each[self.half]
            return [(weights * each.T).T / NOISE, (of_pairs * differences.T).T / NOISE]

        def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
            *values, factor = np.exp(logs)
            errors = self.errors(Constants(*values), factor)
            return np.concatenate([*weighed(errors), (logs - prior) / spread])

        def steepness(logs: NDArray[np.float64]) -> NDArray[np.float64]:
            *values, factor = np.exp(logs)
            found = self.slopes(Constants(*values), factor) if slopes is None else slopes
            return np.concatenate([*weighed(found), np.diag(1 / spread)])

        found = least_squares(
            residuals, first, steepness, loss="soft_l1", max_nfev=rounds, xtol=1e-3, ftol=1e-4
        )
        *values, factor = np.exp(found.x)
        return Constants(*(float(value) for value in values)), float(factor)


def _is_old(measured: Measurement) -> bool:
    """Tell whether a log is of the software of Ampere's first two years."""
    ampere = measured.machine and gpus()[measured.gpu].architecture == "ampere"
    return bool(ampere) and "_v1" not in measured.machine and measured.model == "resnet50"


def _weights(chosen: Sequence[Case]) -> NDArray[np.float64]:
    """Weigh cases so that neither a large family nor one GPU decides alone."""
    keys = [(case.measured.family, case.measured.layout, case.measured.machine) for case in chosen]
    return np.sqrt(alike(keys))


def alike(groups: Sequence[Any]) -> NDArray[np.float64]:
    """Weigh rows so that every group counts as much as any other, however many rows it has."""
    sizes = Counter(groups)
    return np.array([1 / sizes[group] for group in groups])


def paired(chosen: Sequence[Case]) -> list[tuple[int, int]]:
    """Return where the full and the half step of the same model on the same machine are."""
    full = {
        (c.measured.machine, c.measured.gpu, c.measured.model): at
        for at, c in enumerate(chosen)
        if c.measured.precision in ("fp32", "tf32")
    }
    return [
        (full[key], at)
        for at, c in enumerate(chosen)
        if c.measured.precision not in ("fp32", "tf32")
        and (key := (c.measured.machine, c.measured.gpu, c.measured.model)) in full
    ]


def summary(errors: NDArray[np.float64]) -> dict[str, float]:
    """Return the median and the ninth decile of relative errors."""
    relative = np.abs(np.expm1(errors))
    return {
        "n": len(errors),
        "median": float(np.median(relative)),
        "p90": float(np.quantile(relative, 0.9)),
        "bias": float(np.median(errors)),
    }


def is_test(measured: Measurement) -> bool:
    """Tell whether a speed is of a family that no constant is fitted to: a third, by its name."""
    name = measured.family.encode()
    return not measured.machine and int(hashlib.sha256(name).hexdigest(), 16) % 3 == 0


def left_out(
    chosen: Sequence[Case], groups: Sequence[str], start: Constants, age: float
) -> NDArray[np.float64]:
    """Return the error of each case under constants that were fitted without its group."""
    errors = np.full(len(chosen), np.nan)
    everything = Fit(chosen)
    slopes = everything.slopes(start, age)
    for name in sorted({*groups} - {""}):
        out = np.array([each == name for each in groups])
        # The way from the fit to everything is short, so that its slopes serve.
        fitted, _ = everything.fitted(start, age, rounds=6, kept=~out, slopes=slopes)
        errors[out] = Fit(_of(chosen, out)).errors(fitted)
        print(f"  without {name}: {_printed(summary(errors[out]))}", flush=True)
    return errors


def folds(chosen: Sequence[Case]) -> list[str]:
    """Return the group of families that each case is left out with; "" for none."""
    families = sorted({case.measured.family for case in chosen if not case.measured.machine})
    return [
        "" if case.measured.machine else f"families {families.index(case.measured.family) % FOLDS}"
        for case in chosen
    ]


def card(gpu: str) -> str:
    """Return what a GPU is called without the size of its memory."""
    return gpu.removesuffix("_16").removesuffix("_32")


def baseline(kept: Sequence[Case], others: Sequence[Case]) -> NDArray[np.float64]:
    """Return errors of a x FLOPs / peak + b x bytes / bandwidth, with a and b fitted to `kept`."""

    def sides(chosen: Sequence[Case]) -> NDArray[np.float64]:
        found = [
            (
                float((c.work.flops * c.work.count / c.work.peak).sum()),
                float((c.work.moved * c.work.count / c.work.bandwidth).sum()),
            )
            for c in chosen
        ]
        return np.array(found)

    def measured(chosen: Sequence[Case]) -> NDArray[np.float64]:
        return np.array([c.measured.seconds for c in chosen])

    logs = least_squares(
        lambda x: np.log(sides(kept) @ np.exp(x) / measured(kept)) / NOISE,
        np.zeros(2),
        loss="soft_l1",
    ).x
    return np.log(sides(others) @ np.exp(logs) / measured(others))


@dataclass(frozen=True)
class Pairs:
    """Speed-ups of half over fp32 or TF32.

    Attributes:
        errors: Logarithms of predicted over measured ones.
        twice: The same of always saying 2x.
        expected: The larger one of the errors to be expected of both steps.
        gpus: Where.
    """

    errors: NDArray[np.float64]
    twice: NDArray[np.float64]
    expected: NDArray[np.float64]
    gpus: list[str]


def speed_ups(
    chosen: Sequence[Case], errors: NDArray[np.float64], expected: NDArray[np.float64]
) -> Pairs:
    """Return the pairs of half and full steps among some cases."""
    wrong, twice, larger, names = [], [], [], []
    for full, at in paired(chosen):
        half, slow = chosen[at].measured, chosen[full].measured
        wrong.append(errors[full] - errors[at])
        twice.append(np.log(2 * (half.seconds / half.batch) / (slow.seconds / slow.batch)))
        larger.append(max(expected[full], expected[at]))
        names.append(card(half.gpu))
    return Pairs(np.array(wrong), np.array(twice), np.array(larger), names)


def expected_errors(
    chosen: Sequence[Case], errors: NDArray[np.float64], fitted: Constants
) -> tuple[list[float], NDArray[np.float64]]:
    """Return by what the size of an error grows with a step's makeup, and what is expected of each.

    Least squares with coefficients that are not negative; families count alike, as an interval is
    for a family that is not among them, and errors beyond `_LARGE` count as that.
    """
    makeup = np.array([interval.makeup(case.work, fitted) for case in chosen])
    weights = np.sqrt(alike([case.measured.family for case in chosen]))
    sizes = np.minimum(np.abs(errors), _LARGE)
    scales, _ = nnls(makeup * weights[:, None], sizes * weights)
    scales[0] = max(scales[0], _SMALL)
    return [float(each) for each in scales], makeup @ scales


def widths(ratios: NDArray[np.float64], groups: Sequence[str]) -> dict[str, float]:
    """Return the quantiles of errors beside expected ones, where another group joins as the worst.

    Groups count alike (hierarchical conformal prediction: Lee, Barber and Willett, 2023,
    arXiv:2306.06342).

    Args:
        ratios: Of the sizes of errors to expected ones.
        groups: The family or GPU of each: what is to be covered is one more.
    """
    weights, order = alike(groups), np.argsort(ratios)
    below = np.cumsum(weights[order]) / weights.sum()
    another = 1 + 1 / len(set(groups))
    return {
        str(share): float(np.interp(share / 100 * another, below, ratios[order]))
        for share in interval.SHARES
    }


def _of(chosen: Sequence[Case], mask: NDArray[np.bool_]) -> list[Case]:
    return [case for case, wanted in zip(chosen, mask, strict=True) if wanted]


def coverage(
    kept: Sequence[Case], errors: NDArray[np.float64], fitted: Constants
) -> dict[str, float]:
    """Return the share of errors within intervals that were made from other families' errors."""
    names = sorted({case.measured.family for case in kept})
    folds = np.array([names.index(case.measured.family) % FOLDS for case in kept])
    makeup = np.array([interval.makeup(case.work, fitted) for case in kept])
    sizes = np.abs(errors)
    inside: dict[str, list[bool]] = defaultdict(list)
    for fold in range(FOLDS):
        here, there = folds == fold, folds != fold
        scales, expected = expected_errors(_of(kept, there), errors[there], fitted)
        families = [case.measured.family for case in _of(kept, there)]
        found = widths(sizes[there] / expected, families)
        for share, times in found.items():
            inside[share] += [bool(x) for x in sizes[here] <= times * (makeup[here] @ scales)]
    return {share: float(np.mean(each)) for share, each in inside.items()}


def fit(kept: Sequence[Case]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the constants and intervals, and what was found while fitting them."""
    fitted, age = Fit(kept).fitted()
    print(asdict(fitted), age, _printed(summary(Fit(kept).errors(fitted))), flush=True)
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


def named(asked: Measurement) -> str:
    """Return what tells a published speed of timm's from the others."""
    return f"{asked.model} {asked.image_size} {asked.layout}"


def score(found: Sequence[Measurement], cache: Path, frozen: dict[str, Any]) -> dict[str, Any]:
    """Return how far frozen constants are off on the families that they were not fitted to.

    Args:
        found: What was published.
        cache: Where traces are.
        frozen: What `fit` wrote: constants, intervals, and the speeds that had a trace by then.
    """
    published = [each for each in found if is_test(each)]
    # A duplicate of a speed that had a trace before is not new either: the first one stays.
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
            [case for case in kept if case.measured.layout == layout], _of(test, here)
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

    untraced = [each for each in published if _kept(each, cache) is None]
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


LADDER = (512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
"""Batches that timm tries, from the largest that it was asked for down to one that runs."""


def brackets(found: Sequence[Measurement], cache: Path) -> dict[str, dict[str, float]]:
    """Return for how many models the largest batch is predicted to be the one that was found.

    That batch has to fit and the next of the ladder must not, peaks beyond what is held growing in
    proportion; nothing is beyond 512.
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
    """Return a published speed beside what was predicted of it."""
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
    """Fit, or score what was fitted."""
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
        traced_by_now = [each for each in found if is_test(each) and _kept(each, given.cache)]
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


def _printed(found: dict[str, float]) -> str:
    return f"n {found['n']}, median {found['median']:.3f}, p90 {found['p90']:.3f}"


if __name__ == "__main__":
    main()
