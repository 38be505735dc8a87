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
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

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
_BY_BYTES = ("pointwise", "reduction", "copy")
"""Kinds whose operators differ little in time if they move equally many bytes."""
_NEAR = 0.7
"""Distance at which a measured call counts half: a factor of two in one size. Two operators of a
kind in `_BY_BYTES` are as far apart."""
_SAME = 1e-9
"""Distance below which two calls have the same sizes."""
_KEYS = ("device", "datasheet", "torch", "cudnn", "launch_seconds", "rows")


class Similar(NamedTuple):
    """What measured calls say of other calls.

    Attributes:
        ratio: (N,); the logarithm by which the modelled time of each call is multiplied.
        trust: (N,); from 0, if nothing similar was measured, to 1, if the call itself was.
    """

    ratio: NDArray[np.float64]
    trust: NDArray[np.float64]


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
    def _names(self) -> NDArray[np.str_]:
        return np.array([call.op.name for call in self.calls])

    @cached_property
    def _places(self) -> NDArray[np.float64]:
        return np.array([_place(call.op) for call in self.calls])

    def similar(self, calls: Sequence[Call], *, tf32: bool, held_out: bool = False) -> Similar:
        """Return what the measured calls say of the calls of a step.

        Args:
            calls: The calls of the step.
            tf32: Whether products of fp32 tensors run in TF32.
            held_out: Whether to leave out the measured calls with the sizes of a call, to test the
                interpolation.
        """
        found = np.zeros((2, len(calls)))
        for at, call in enumerate(calls):
            alike = self._classes.get(_class(call.op, tf32=tf32 and call.op.format == "fp32"), [])
            if alike:
                found[:, at] = self._interpolated(call.op, np.array(alike), held_out=held_out)
        return Similar(*found)

    def _interpolated(
        self, op: Op, known: NDArray[np.intp], *, held_out: bool
    ) -> tuple[float, float]:
        """Return the logarithm of a call's ratio, from those of its class, and the trust in it."""
        far = np.abs(self._places[known] - _place(op)).sum(axis=1)
        if op.kind in _BY_BYTES:
            far += _NEAR * (self._names[known] != op.name)
        itself = far < _SAME
        if itself.any() and not held_out:
            return float(self.ratios[known[itself]].mean()), 1.0
        known, far = known[~itself], far[~itself]
        if not len(known):
            return 0.0, 0.0
        near = np.argsort(far, kind="stable")[:_NEIGHBOURS]
        weights = 1 / far[near] ** 2
        trust = float(1 / (1 + (far[near[0]] / _NEAR) ** 2))
        return trust * float(weights @ self.ratios[known[near]] / weights.sum()), trust

    @cached_property
    def widths(self) -> tuple[float, float] | None:
        """The half-widths that cover 80 % and 90 % of the measured time, each call held out.

        A call counts by its time and by the trust in what is similar to it. None if no two measured
        calls are similar.
        """
        flags, errors = np.array(self.tf32), np.zeros(len(self.calls))
        weights = np.array(self.seconds)
        for tf32 in (False, True):
            where = np.flatnonzero(flags == tf32)
            found = self.similar([self.calls[at] for at in where], tf32=tf32, held_out=True)
            errors[where] = np.abs(found.ratio - self.ratios[where])
            weights[where] *= found.trust
        if not weights.sum():
            return None
        order = np.argsort(errors)
        below = np.cumsum(weights[order]) / weights.sum()
        low, high = (float(np.interp(share / 100, below, errors[order])) for share, _ in _SHARES)
        return low, high


def _class(op: Op, *, tf32: bool) -> tuple[Any, ...]:
    """Return what two calls must share for one to say something of the other."""
    name = "" if op.kind in (*PRODUCTS, *_BY_BYTES) else op.name
    return op.kind, op.role, name, "tf32" if tf32 and op.flops else op.format, op.channels_last


def _place(op: Op) -> NDArray[np.float64]:
    """Return the place of a call among others of its class: the logarithms of its sizes."""
    if op.kind in PRODUCTS:
        sizes = op.m, op.n, op.k, op.groups, op.window
    else:
        sizes = op.read + op.written, op.groups, 1, 1, 1
    return np.log(np.maximum(sizes, 1))


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


def files() -> list[Path]:
    """Return the files of the user's measurements, then the shipped ones."""
    return [*sorted(own_folder().glob("*.json")), *sorted(SHIPPED.glob("*.json"))]


def every() -> list[Measured]:
    """Return the contents of all files.

    Raises:
        UserError: If a file is wrong.
    """
    return [read(path, own=path.parent != SHIPPED) for path in files()]


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
    """Return the measured device that says most of a GPU; None if none says anything.

    Of devices at the same distance, the user's own one comes first, then the one with the most
    similar datasheet.
    """

    def order(each: Measured) -> tuple[int, bool, float]:
        far = distance(each.gpu, gpu)
        rates = ((each.gpu.fp16, gpu.fp16), (each.gpu.bandwidth, gpu.bandwidth))
        apart = sum(abs(math.log(one / other)) for one, other in rates)
        return [*CARRIED].index(str(far)), not each.own, apart

    near = [each for each in found if distance(each.gpu, gpu) is not None]
    return min(near, key=order, default=None)


def caution(near: Measured | None, gpu: Gpu) -> str:
    """Return what is not known of a GPU; "" if operators of its architecture were measured."""
    if near is not None and near.gpu.architecture == gpu.architecture:
        return ""
    return gpu.caution


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
    similar = near.similar(calls, tf32=tf32)
    correction = work.correction * np.exp(similar.ratio)
    launch = near.launch if near.own and far == "same" else 0.0
    if near.widths is None:
        return replace(work, correction=correction, launch=launch)
    low, high = (
        math.hypot(width, CARRIED[far] * times)
        for width, (_, times) in zip(near.widths, _SHARES, strict=True)
    )
    return replace(
        work, correction=correction, trust=similar.trust, widths=(low, high), launch=launch
    )
