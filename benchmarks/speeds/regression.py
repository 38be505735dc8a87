"""Robust regression of the cost model's constants, with priors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import least_squares

from halfstep.advise.predict import cost
from halfstep.advise.predict.cost import NAMES, Constants
from halfstep.advise.predict.gpus import gpus
from halfstep.advise.predict.workload import joined
from speeds.cases import alike, paired

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from published_steps import Measurement

    from speeds.cases import Case

PRIORS = Constants(
    half=1.0, tf32=0.8, fp32=0.8, winograd=1.5, ramp=64, weight=0.85, load=0.4, bandwidth=0.85,
    operands=0.7, operands_last=1.0, norm=0.8, norm_native=0.4, norm_native_last=0.4,
    pool_first=100.0, row_norm=0.6, softmax=0.75, copy=0.8, depthwise=0.45,
    depthwise_last=0.35, depthwise_weight=0.25,
    depthwise_weight_last=0.35, depthwise_full=0.02, attention_full=0.25,
    channels=2.0, grouped=1.0, grouped_last=1.0,
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
    "operands_last": 0.5,
    "load": 0.5,
    "cache": 0.5,
}
"""How sure: the standard deviation of a constant's logarithm, 0.3 where nothing is said."""

NOISE = 0.08
"""Errors up to which the regression is of squares; beyond, it is of absolute values."""

PAIRED = 2**-0.5
"""Weight of a speed-up's error beside a step's: as the difference of two, it has twice the variance
where they are independent."""

_STEP = 1e-3


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
