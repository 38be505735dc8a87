"""The operators of a step as columns of numbers, from which NumPy computes all costs at once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from halfstep.advise.predict.operators import KINDS, SIZES
from halfstep.advise.predict.tiles import Tiling, tiling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from halfstep.advise.predict.gpus import Gpu
    from halfstep.advise.predict.trace import Call


_GROUPS = (4, 8, 16, 32)
_FULL = 32
"""Number of groups, or of channels in all narrow groups together, that fills a tile of a grouped
convolution in NHWC."""

_NATIVE_NORMS = ("native_batch_norm", "native_batch_norm_backward")
_POOLED = "max_pool2d_with_indices_backward"
_NCHW_ONLY = ("native_group_norm", "native_group_norm_backward")
"""Operators whose CUDA kernels support only NCHW images (ATen's `native/group_norm.cpp`)."""


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """The operator calls of a step on a GPU: a column for each figure, a row for each call.

    Attributes:
        count: Number of equal calls.
        flops: Floating-point operations of a call.
        moved: Bytes read and written by a call.
        accesses: Elements read and written by a call.
        elements: Elements of the largest tensor of a call.
        launches: Number of kernels of a call.
        kind: Index of the kind in `KINDS`.
        half: Whether `half_data` is true and the GPU has units for products in the format.
        tf32: Whether products run in TF32.
        fp8: Whether products run in FP8.
        half_data: Whether an element has at most two bytes.
        channels_last: Whether images are in NHWC.
        converted: Whether images are copied from NHWC to NCHW and back, because the kernel supports
            only NCHW.
        filtered: Whether the call is a convolution with 3x3 windows.
        native_norm: Whether the call is a batch norm that cuDNN does not run.
        pooled_first: Whether the call is the backward of max pooling in NCHW, whose kernel searches
            the windows of each input element.
        of_weight: Whether the call computes the gradient of a weight.
        misaligned: Whether the sizes of a half-precision matrix product (N, K) are not multiples of
            8, which tensor cores need for the full rate.
        narrow: Whether the channel counts of a half-precision convolution are not multiples of 8.
        groups: Number of groups of a convolution; of a depthwise one and of a batch norm, the
            number of channels.
        width: Channels in a group of a convolution: the geometric mean of input and output.
        odd_groups: Whether cuDNN has no tensor-core kernel for the groups of a half-precision
            convolution. It has kernels for groups with equal numbers of input and output channels,
            namely 4, 8, 16 or 32; in NHWC, not for some convolutions with fewer than 32 groups
            (`_loose`).
        peak: Peak rate of the units that run the products, in FLOP/s.
        vector: Peak rate of fp32 outside tensor cores, in FLOP/s.
        bandwidth: Memory bandwidth, in bytes per second.
        sms: Number of multiprocessors.
        ticks: Clock cycles per second, summed over all multiprocessors.
        load: Peak rate per watt, in TFLOP/s per watt, times the energy per operation relative to a
            12 nm GPU. Doubled for TF32, which runs at half the rate of half precision on the same
            units.
        cache: Size of the last cache level, in MiB.
        tiling: The split of matrix products into tiles.
        correction: By what measured operators, and gains of FP8, multiply the modelled time.
        trust: From 0, if no operator like the call was measured, to 1, if the call itself was.
        architecture: The architecture of the GPU; "" for the workloads of several GPUs.
        launch: Seconds of this host to launch a kernel; 0 if it was not measured.
        widths: The half-widths of 80 % and 90 % of the times of measured calls, as natural
            logarithms; None without them.
    """

    count: NDArray[np.float64]
    flops: NDArray[np.float64]
    moved: NDArray[np.float64]
    accesses: NDArray[np.float64]
    elements: NDArray[np.float64]
    launches: NDArray[np.float64]
    kind: NDArray[np.intp]
    half: NDArray[np.bool_]
    tf32: NDArray[np.bool_]
    fp8: NDArray[np.bool_]
    half_data: NDArray[np.bool_]
    channels_last: NDArray[np.bool_]
    converted: NDArray[np.bool_]
    filtered: NDArray[np.bool_]
    native_norm: NDArray[np.bool_]
    pooled_first: NDArray[np.bool_]
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
    correction: NDArray[np.float64]
    trust: NDArray[np.float64]
    tiling: Tiling
    architecture: str = ""
    launch: float = 0.0
    widths: tuple[float, float] | None = None

    def __len__(self) -> int:
        return len(self.count)

    def of(self, *kinds: str) -> NDArray[np.bool_]:
        """Return a mask of the rows whose kind is among some kinds."""
        return np.isin(self.kind, [KINDS.index(kind) for kind in kinds])


def workload(calls: Sequence[Call], gpu: Gpu, *, tf32: bool) -> Workload:
    """Return the workload of a step on a GPU.

    Args:
        calls: The operator calls of the step.
        gpu: The GPU.
        tf32: Whether products of fp32 tensors may use TF32.
    """

    def numbers(name: str) -> NDArray[np.float64]:
        return np.array([getattr(call.op, name) for call in calls], dtype=np.float64)

    formats = [
        "tf32" if tf32 and call.op.format == "fp32" and gpu.has("tf32") else call.op.format
        for call in calls
    ]
    m, n, k, groups = numbers("m"), numbers("n"), numbers("k"), numbers("groups")
    half_data = np.array([SIZES[each] <= 2 for each in formats], dtype=np.bool_)
    half = half_data & np.array([gpu.has(each) for each in formats], dtype=np.bool_)
    kind = np.array([KINDS.index(call.op.kind) for call in calls], dtype=np.intp)
    rows = np.ones(len(calls))
    moved = numbers("read") + numbers("written")
    window, of_weight = numbers("window"), [call.op.role == "weight" for call in calls]
    is_gemm = kind == KINDS.index("gemm")
    is_conv = kind == KINDS.index("conv")
    # Channels of a convolution: the two sizes of its matrix product that do not count pixels,
    # without the factor of the filter's window.
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
        elements=numbers("elements"),
        launches=numbers("launches"),
        kind=kind,
        half=half,
        tf32=np.array([each == "tf32" for each in formats], dtype=np.bool_),
        fp8=numbers("gain") != 1,
        half_data=half_data,
        channels_last=channels_last,
        converted=np.array(
            [call.op.channels_last and call.op.name in _NCHW_ONLY for call in calls],
            dtype=np.bool_,
        ),
        filtered=is_conv & (window == 9),
        native_norm=np.array([call.op.name in _NATIVE_NORMS for call in calls], dtype=np.bool_),
        pooled_first=np.array(
            [call.op.name == _POOLED and not call.op.channels_last for call in calls],
            dtype=np.bool_,
        ),
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
        correction=1 / numbers("gain"),
        trust=np.zeros(len(calls)),
        tiling=tiling(m, n, k, groups, rows * gpu.sms),
        architecture=gpu.architecture,
    )


def _loose(width: NDArray[np.float64], groups: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return a mask of the groups that do not fill the tiles of grouped convolutions in NHWC.

    This is inferred from published speeds, because cuDNN does not document it. Groups of 16
    channels are fast with at least 32 groups (ResNeXt) and slow with fewer (RegNet); groups of 32
    channels are assumed to behave in the same way. Groups of 8 channels are also fast with fewer
    than 32 groups if the total number of channels is a multiple of 32 (RegNetZ).
    """
    few: NDArray[np.bool_] = (groups < _FULL) & ((width >= 16) | (width * groups % _FULL != 0))
    return few


def joined(parts: Sequence[Workload]) -> Workload:
    """Concatenate the workloads of several steps, to fit constants to all of them at once."""
    columns: dict[str, Any] = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts])
        for field in fields(Workload)
        if field.name not in ("tiling", "architecture", "launch", "widths")
    }
    work = np.concatenate([part.tiling.work for part in parts], axis=1)
    ramp = np.concatenate([part.tiling.ramp for part in parts], axis=1)
    return Workload(**columns, tiling=Tiling(work, ramp))
