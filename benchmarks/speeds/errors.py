"""Errors of fitted constants: on what was left out of a fit, beside a baseline, in intervals."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import least_squares, nnls

from halfstep.advise.predict import interval
from speeds.cases import FOLDS, alike, card, paired, subset
from speeds.regression import NOISE, Fit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from halfstep.advise.predict.cost import Constants
    from speeds.cases import Case

_LARGE, _SMALL = 0.5, 0.02


def summary(errors: NDArray[np.float64]) -> dict[str, float]:
    """Return the median and the ninth decile of relative errors."""
    relative = np.abs(np.expm1(errors))
    return {
        "n": len(errors),
        "median": float(np.median(relative)),
        "p90": float(np.quantile(relative, 0.9)),
        "bias": float(np.median(errors)),
    }


def printed(found: dict[str, float]) -> str:
    """Return a summary in a line."""
    return f"n {found['n']}, median {found['median']:.3f}, p90 {found['p90']:.3f}"


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
        errors[out] = Fit(subset(chosen, out)).errors(fitted)
        print(f"  without {name}: {printed(summary(errors[out]))}", flush=True)
    return errors


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
        scales, expected = expected_errors(subset(kept, there), errors[there], fitted)
        families = [case.measured.family for case in subset(kept, there)]
        found = widths(sizes[there] / expected, families)
        for share, times in found.items():
            inside[share] += [bool(x) for x in sizes[here] <= times * (makeup[here] @ scales)]
    return {share: float(np.mean(each)) for share, each in inside.items()}
