"""The operators of a step as columns of numbers, from which a cost is computed at once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from halfstep.advise.operators import KINDS, SIZES
from halfstep.advise.tiles import Tiling, tiling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from halfstep.advise.gpus import Gpu
    from halfstep.advise.trace import Call


_GROUPS = (4, 8, 16, 32)
_FULL = 32
"""Groups, or channels of narrow groups, that fill a tile of a grouped convolution in NHWC."""

_NCHW_ONLY = ("native_group_norm", "native_group_norm_backward")
"""Operators whose CUDA kernels take images in NCHW alone (ATen's `native/group_norm.cpp`)."""


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """Calls of a step on a GPU: a column for each figure, a row for each call.

    Attributes:
        count: How often the call is made.
        flops: Floating-point operations.
        moved: Bytes read and written.
        accesses: Elements read and written.
        launches: Kernels.
        kind: Index of its kind in `KINDS`.
        half: Whether its products run in a half format on units of their own.
        tf32: Whether they run as TF32.
        half_data: Whether its data are of a half format.
        channels_last: Whether its images are.
        converted: Whether its images are brought to NCHW and back, as its kernel knows no other.
        filtered: Whether it is a convolution with windows of 3x3.
        of_weight: Whether it is a weight's gradient.
        misaligned: Whether a matrix product's widths keep half tensor cores from full rate.
        narrow: Whether a half convolution's channels do.
        groups: Of a convolution: how many channels a depthwise one has.
        width: Channels of a convolution's group: the geometric mean of in and out.
        odd_groups: Whether cuDNN has no kernel on tensor cores for a half convolution's groups:
            where they are of other than 4, 8, 16 or 32 channels, in and out alike, and in NHWC some
            convolutions of fewer than 32 groups (`_loose`).
        peak: FLOP/s of the units that its products run on.
        vector: FLOP/s of fp32 outside tensor cores.
        bandwidth: Bytes a second.
        sms: Multiprocessors.
        ticks: Clock cycles a second of all multiprocessors.
        load: TFLOP/s of the peak for each watt, brought to one manufacturing process and to the
            energy of a half product: TF32 runs at half the rate on the same units.
        cache: MiB of the last cache level.
        tiling: How matrix products are cut up.
    """

    count: NDArray[np.float64]
    flops: NDArray[np.float64]
    moved: NDArray[np.float64]
    accesses: NDArray[np.float64]
    launches: NDArray[np.float64]
    kind: NDArray[np.intp]
    half: NDArray[np.bool_]
    tf32: NDArray[np.bool_]
    half_data: NDArray[np.bool_]
    channels_last: NDArray[np.bool_]
    converted: NDArray[np.bool_]
    filtered: NDArray[np.bool_]
    of_weight: NDArray[np.bool_]
    misaligned: NDArray[np.bool_]
    narrow: NDArray[np.bool_]
    groups: NDArray[np.float64]
    width: NDArray[np.float64]
    odd_groups: NDArray[np.bool_]
    peak: NDArray[np.float64]
    vector: NDArray[np.float64]
    bandwidth: NDArray[np.float64]
    sms: NDArray[np.float64]
    ticks: NDArray[np.float64]
    load: NDArray[np.float64]
    cache: NDArray[np.float64]
    tiling: Tiling

    def __len__(self) -> int:
        return len(self.count)

    def of(self, *kinds: str) -> NDArray[np.bool_]:
        """Return which rows are of one of some kinds."""
        return np.isin(self.kind, [KINDS.index(kind) for kind in kinds])


def workload(calls: Sequence[Call], gpu: Gpu, *, tf32: bool) -> Workload:
    """Return the columns of a step.

    Args:
        calls: Its operators.
        gpu: Where they run.
        tf32: Whether products of fp32 tensors may use TF32.
    """

    def numbers(name: str) -> NDArray[np.float64]:
        return np.array([getattr(call.op, name) for call in calls], dtype=np.float64)

    formats = [
        "tf32" if tf32 and call.op.format == "fp32" and gpu.has("tf32") else call.op.format
        for call in calls
    ]
    m, n, k, groups = numbers("m"), numbers("n"), numbers("k"), numbers("groups")
    half_data = np.array([each in ("fp16", "bf16", "fp8") for each in formats], dtype=np.bool_)
    half = half_data & np.array([gpu.has(each) for each in formats], dtype=np.bool_)
    kind = np.array([KINDS.index(call.op.kind) for call in calls], dtype=np.intp)
    rows = np.ones(len(calls))
    moved = numbers("read") + numbers("written")
    window, of_weight = numbers("window"), [call.op.role == "weight" for call in calls]
    is_gemm = kind == KINDS.index("gemm")
    is_conv = kind == KINDS.index("conv")
    # Channels of a convolution: what is summed over, or the columns, without the filter's window.
    widths = np.where(of_weight, m, n), np.where(of_weight, n, k) / window
    narrow = (widths[0] % 8 != 0) | (widths[1] % 8 != 0)
    channels_last = np.array([call.op.channels_last for call in calls], dtype=np.bool_)
    packed = np.isin(widths[0], _GROUPS) & (widths[0] == widths[1])
    packed &= ~(channels_last & _loose(widths[0], groups))
    is_grouped = kind == KINDS.index("grouped")
    return Workload(
        count=np.array([call.count for call in calls], dtype=np.float64),
        flops=numbers("flops"),
        moved=moved,
        accesses=moved / np.array([SIZES[call.op.format] for call in calls]),
        launches=numbers("launches"),
        kind=kind,
        half=half,
        tf32=np.array([each == "tf32" for each in formats], dtype=np.bool_),
        half_data=half_data,
        channels_last=channels_last,
        converted=np.array(
            [call.op.channels_last and call.op.name in _NCHW_ONLY for call in calls],
            dtype=np.bool_,
        ),
        filtered=is_conv & (window == 9),
        of_weight=np.array(of_weight, dtype=np.bool_),
        misaligned=is_gemm & half & ((n % 8 != 0) | (k % 8 != 0)),
        narrow=is_conv & half & narrow,
        groups=groups,
        width=np.sqrt(np.maximum(widths[0] * widths[1], 1)),
        odd_groups=is_grouped & half & ~packed,
        peak=np.array([gpu.peak(each) for each in formats], dtype=np.float64),
        vector=rows * gpu.fp32 * 1e12,
        bandwidth=rows * gpu.bandwidth * 1e9,
        sms=rows * gpu.sms,
        ticks=rows * gpu.sms * gpu.clock * 1e6,
        load=np.array([gpu.peak(each) * (1 + (each == "tf32")) for each in formats])
        / (1e12 * gpu.power)
        * gpu.energy,
        cache=rows * gpu.cache,
        tiling=tiling(m, n, k, groups, rows * gpu.sms),
    )


def _loose(width: NDArray[np.float64], groups: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which groups do not fill the tiles of the kernels for grouped convolutions in NHWC.

    Inferred from published speeds, as cuDNN does not say: groups of 16 channels are fast from 32
    groups on (ResNeXt) and slow with fewer (RegNet), and those of 32 are taken to be alike. Groups
    of 8 are also fast with fewer, where all channels together are a multiple of 32 (RegNetZ).
    """
    few: NDArray[np.bool_] = (groups < _FULL) & ((width >= 16) | (width * groups % _FULL != 0))
    return few


def joined(parts: Sequence[Workload]) -> Workload:
    """Return the rows of several steps as one, which is how constants are fitted."""
    columns = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts])
        for field in fields(Workload)
        if field.name != "tiling"
    }
    work = np.concatenate([part.tiling.work for part in parts], axis=1)
    ramp = np.concatenate([part.tiling.ramp for part in parts], axis=1)
    return Workload(**columns, tiling=Tiling(work, ramp))
