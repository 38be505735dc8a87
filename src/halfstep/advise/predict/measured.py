"""Corrects the cost model by operators that were measured on a device (`halfstep bench operators`).

The speed of a kernel changes abruptly with its shape, because libraries switch between kernels. So
no law is fitted to the measured times: the ratio of measured to modelled time is interpolated
between the most similar measured calls of the same kind, format and layout, and a call without a
similar one keeps the time of the cost model. On another GPU than the measured one, the ratio is the
same, and the cost model carries the time over in proportion to the figures of the datasheets.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from halfstep.advise.predict.cost import alike, constants, kernels
from halfstep.advise.predict.gpus import Gpu
from halfstep.advise.predict.operators import PRODUCTS, Op
from halfstep.advise.predict.trace import Call
from halfstep.advise.predict.workload import workload
from halfstep.errors import UserError, in_a_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from halfstep.advise.predict.workload import Workload

Distance = Literal["same", "architecture", "other"]

SHIPPED = Path(__file__).with_name("measured")
CARRIED: dict[str, float] = {"same": 0.0, "architecture": 0.088, "other": 0.26}
"""By distance, the half-width of 80 % that is added to the error of the interpolation, as a natural
logarithm: the errors on GPUs that were left out of a fit (`results/advise_speed.json`), and
those on the newest GPUs before any of their architecture was measured."""
_SHARES = ((80, 1.0), (90, 1.3))
_NEIGHBOURS = 4
_NEAR = 0.7
"""Distance at which a measured call counts half: a factor of two in one size."""
_KEYS = ("device", "datasheet", "torch", "cudnn", "launch_seconds", "rows")


@dataclass(frozen=True)
class Measured:
    """The measured operators of a device.

    Attributes:
        path: The file.
        device: What the device calls itself, and the version of PyTorch.
        gpu: The device, by its datasheet.
        launch: Seconds of the host to launch a kernel.
        calls: The measured calls.
        tf32: Whether each call's products ran in TF32.
        seconds: The measured time of each call.
        own: Whether the user measured it, so that the host is probably the user's.
    """

    path: Path
    device: str
    gpu: Gpu
    launch: float
    calls: tuple[Call, ...]
    tf32: tuple[bool, ...]
    seconds: tuple[float, ...]
    own: bool

    @cached_property
    def ratios(self) -> NDArray[np.float64]:
        """The logarithms of measured over modelled times."""
        found = np.empty(len(self.calls))
        flags = np.array(self.tf32)
        for tf32 in (False, True):
            where = np.flatnonzero(flags == tf32)
            work = workload([self.calls[at] for at in where], self.gpu, tf32=tf32)
            modelled = kernels(work, constants(self.gpu.architecture)).total
            found[where] = np.log(np.array(self.seconds)[where] / modelled)
        return found

    @cached_property
    def _classes(self) -> dict[tuple[Any, ...], list[int]]:
        found: dict[tuple[Any, ...], list[int]] = {}
        for at, call in enumerate(self.calls):
            found.setdefault(_class(call.op, tf32=self.tf32[at]), []).append(at)
        return found

    @cached_property
    def _places(self) -> NDArray[np.float64]:
        return np.array([_place(call.op) for call in self.calls])

    def corrections(
        self, calls: Sequence[Call], *, tf32: bool, without: Sequence[int | None] | None = None
    ) -> NDArray[np.float64]:
        """Return by what the modelled time of each call is multiplied.

        Args:
            calls: The calls of a step.
            tf32: Whether products of fp32 tensors run in TF32.
            without: For each call, the measured one that is left out, to test the interpolation.
        """
        found = np.zeros(len(calls))
        for row, call in enumerate(calls):
            known = self._classes.get(_class(call.op, tf32=tf32 and call.op.format == "fp32"), [])
            if without is not None:
                known = [at for at in known if at != without[row]]
            if known:
                found[row] = self._interpolated(call.op, np.array(known))
        return np.exp(found)

    def _interpolated(self, op: Op, known: NDArray[np.intp]) -> float:
        far = np.abs(self._places[known] - _place(op)).sum(axis=1)
        near = np.argsort(far, kind="stable")[:_NEIGHBOURS]
        if far[near[0]] < 1e-9:  # measured itself
            return float(self.ratios[known[near[0]]])
        weights = 1 / far[near] ** 2
        trust = 1 / (1 + (far[near[0]] / _NEAR) ** 2)
        return float(trust * (weights @ self.ratios[known[near]]) / weights.sum())

    @cache  # noqa: B019  (a file is read once, and lives as long as the process)
    def width(self, share: int) -> float:
        """Return the half-width that covers a share of the measured time, each call left out."""
        sizes, weights = np.abs(self.errors()), np.array(self.seconds)
        order = np.argsort(sizes)
        below = np.cumsum(weights[order]) / weights.sum()
        return float(np.interp(share / 100, below, sizes[order]))

    def errors(self) -> NDArray[np.float64]:
        """Return the logarithmic error of each call's time, predicted from the others."""
        flags = np.array(self.tf32)
        found = np.empty(len(self.calls))
        for tf32 in (False, True):
            where = np.flatnonzero(flags == tf32)
            chosen = [self.calls[at] for at in where]
            given = self.corrections(chosen, tf32=tf32, without=list(map(int, where)))
            found[where] = np.log(given) - self.ratios[where]
        return found


def _class(op: Op, *, tf32: bool) -> tuple[Any, ...]:
    """Return what two calls must share for one to say something of the other."""
    name = "" if op.kind in PRODUCTS else op.name
    return op.kind, op.role, name, "tf32" if tf32 and op.flops else op.format, op.channels_last


def _place(op: Op) -> NDArray[np.float64]:
    """Return the place of a call among others of its class: the logarithms of its sizes."""
    sizes = (op.m, op.n, op.k, op.groups, op.window) if op.kind in PRODUCTS else (op.groups,)
    moved = op.read + op.written
    return np.log([*(max(1, each) for each in (*sizes, moved)), *([1] * (5 - len(sizes)))])


def document(path: Path) -> dict[str, Any]:
    """Return the contents of a file of measured operators.

    Raises:
        UserError: If it is no such file.
    """
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} has no measured operators: {in_a_line(error)}") from None
    if not isinstance(found, dict) or (missing := [key for key in _KEYS if key not in found]):
        what = ", ".join(missing) if isinstance(found, dict) else "an object"
        raise UserError(
            f"{path} has no measured operators: it lacks {what}; measure them again with halfstep "
            "bench operators, into another file"
        )
    return found


def read(path: Path, *, own: bool) -> Measured:
    """Return the measured operators of a file.

    Raises:
        UserError: If it is no such file.
    """
    found = document(path)
    try:
        sheet = dict(found["datasheet"], aliases=tuple(found["datasheet"]["aliases"]))
        rows = [row for row in found["rows"] if "refused" not in row]
        calls, flags, seconds = [], [], []
        for row in rows:
            # A call of several kernels, as a convolution's backward, is shared out by the model.
            ops = [Op(**each) for each in row["ops"]]
            work = workload([Call(op, "forward", 1) for op in ops], Gpu(**sheet), tf32=row["tf32"])
            spent = kernels(work, constants(sheet["architecture"])).total
            calls += [Call(op, "forward", 1) for op in ops]
            flags += [bool(row["tf32"])] * len(ops)
            seconds += list(row["seconds"] * spent / spent.sum())
        launch = float(found["launch_seconds"])
        return Measured(
            path,
            f"{found['device']} with PyTorch {found['torch']}",
            Gpu(**sheet),
            launch,
            tuple(calls),
            tuple(flags),
            tuple(seconds),
            own,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{path} has a wrong row of measured operators: {in_a_line(error)}"
        ) from None


def own_folder() -> Path:
    """Return the folder of the files that the user has measured."""
    kept = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return kept / "halfstep" / "operators"


def every() -> list[Measured]:
    """Return the user's own files, then the shipped ones.

    Raises:
        UserError: If a file is wrong.
    """
    own = [read(path, own=True) for path in sorted(own_folder().glob("*.json"))]
    return own + [read(path, own=False) for path in sorted(SHIPPED.glob("*.json"))]


def distance(measured: Gpu, gpu: Gpu) -> Distance | None:
    """Return how far a measured GPU is from another one; None if it says nothing of it.

    It says nothing of an architecture that no constants of its own are carried over to: the
    libraries there have other kernels.
    """
    if measured.key == gpu.key:
        return "same"
    if measured.architecture == gpu.architecture:
        return "architecture"
    return "other" if alike(gpu.architecture) == measured.architecture else None


def nearest(found: Sequence[Measured], gpu: Gpu) -> Measured | None:
    """Return the measured device that says most of a GPU; of equally near ones, the user's own."""
    near = [each for each in found if distance(each.gpu, gpu) is not None]
    order = list(CARRIED)
    return min(near, key=lambda each: order.index(str(distance(each.gpu, gpu))), default=None)


def corrected(
    work: Workload, calls: Sequence[Call], gpu: Gpu, near: Measured, *, tf32: bool
) -> Workload:
    """Return the workload of a step whose kernels have the measured times, carried over to a GPU.

    Args:
        work: The workload of the calls on the GPU.
        calls: The calls of the step.
        gpu: The GPU.
        near: The nearest measured device.
        tf32: Whether products of fp32 tensors run in TF32.
    """
    far = distance(near.gpu, gpu)
    assert far is not None
    low, high = (math.hypot(near.width(share), CARRIED[far] * times) for share, times in _SHARES)
    launch = near.launch if near.own and far == "same" else 0.0
    correction = near.corrections(calls, tf32=tf32)
    return replace(work, correction=correction, widths=(low, high), launch=launch)
