"""Predicts the time of a training step on a GPU from its operators.

The time of a kernel is a smooth maximum of the time of its arithmetic and the time of its memory
traffic, plus a few microseconds. The time of a step is a smooth maximum of the time of all kernels
and the time that the host takes to launch them. This is the roofline model (Williams et al., 2009,
doi:10.1145/1498765.1498785), extended by tiles and waves. Its constants are fitted to published
measurements (`benchmarks/fit_costs.py`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from halfstep.advise.predict.operators import KINDS, PRODUCTS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from halfstep.advise.predict.workload import Workload

FILE = Path(__file__).with_name("constants.json")

Bound = Literal["compute", "bandwidth", "launches", "host"]


@dataclass(frozen=True, slots=True)
class Constants:
    """The fitted constants, which datasheets do not contain.

    A compute efficiency is a share of the datasheet's peak rate, a memory efficiency a share of the
    datasheet's bandwidth. A factor multiplies the efficiency of the general case.

    Attributes:
        half: Compute efficiency of half-precision products on tensor cores.
        tf32: Compute efficiency of TF32 products.
        fp32: Compute efficiency of fp32 products outside tensor cores.
        winograd: Factor for 3x3 convolutions outside tensor cores: Winograd's algorithm needs fewer
            multiplications (Lavin and Gray, arXiv:1509.09308).
        ramp: Fixed cost of a tile, as the increase of K that takes the same time at `_OPERATIONS`
            operations per clock cycle. In clock cycles, the cost does not depend on the rate.
        weight: Factor for products that compute the gradient of a weight.
        load: Value of `Workload.load`, in TFLOP/s per watt, at which the power limit of a GPU
            lowers the rate of products to 1/sqrt(2).
        bandwidth: Memory efficiency of pointwise operators.
        operands: Memory efficiency of matrix products and convolutions.
        operands_last: Factor for the memory efficiency of convolutions in NHWC, where the channels
            of a pixel are contiguous.
        norm: Memory efficiency of norms over a batch or a group of channels.
        norm_native: Factor for batch norms that cuDNN does not run, in bf16 or with half weights,
            in NCHW and with many channels. With few, multiprocessors are idle.
        norm_native_last: The same in NHWC.
        pool_first: Elements of the input of max pooling in NCHW whose gradients a multiprocessor
            computes per clock cycle: for each, the kernel searches all windows that contain it.
        row_norm: Memory efficiency of norms over a row: LayerNorm, RMSNorm.
        softmax: Memory efficiency of softmax and losses.
        copy: Memory efficiency of copies, casts and transposes.
        depthwise: Memory efficiency of depthwise convolutions in NCHW, in the forward pass and for
            the gradient of the input.
        depthwise_last: The same in NHWC.
        depthwise_weight: Memory efficiency of depthwise convolutions in NCHW, for the gradient of
            the weight.
        depthwise_weight_last: The same in NHWC.
        depthwise_full: Compute efficiency of depthwise convolutions of fp32 data, as a share of
            fp32's peak.
        attention_full: Compute efficiency of fused attention of fp32 data, as a share of fp32's
            peak; its kernels do not use tensor cores well.
        channels: Channels per multiprocessor at which the gradient of a depthwise weight reaches
            half of its memory efficiency: its kernels run a few blocks per channel, so a GPU is
            partly idle if there are few channels.
        grouped: Factor for the compute efficiency of grouped convolutions in NCHW.
        grouped_last: The same in NHWC.
        odd_groups: Compute efficiency, as a share of fp32's peak, of half-precision grouped
            convolutions in NCHW that run outside tensor cores (`Workload.odd_groups`).
        odd_groups_last: The same in NHWC.
        odd_width: Channels per group at which such a convolution reaches half of that efficiency: a
            loaded operand is reused only for the channels of its own group.
        transposes: Share of half-precision convolutions whose input and output are copied:
            transposed in NCHW, or padded in NHWC with narrow channels (`Workload.narrow`).
        transposes_tf32: The same for TF32 convolutions.
        cache: Exponent with which the bandwidth grows with the cache size.
        accesses: Elements that a multiprocessor reads or writes per clock cycle.
        narrow: Factor for the compute efficiency of half-precision convolutions whose channel
            counts are not multiples of 8.
        kernel: Fixed time of a kernel on the GPU, in microseconds.
        host: Time of the host to launch a kernel, in microseconds.
    """

    half: float
    tf32: float
    fp32: float
    winograd: float
    ramp: float
    weight: float
    load: float
    bandwidth: float
    operands: float
    operands_last: float
    norm: float
    norm_native: float
    norm_native_last: float
    pool_first: float
    row_norm: float
    softmax: float
    copy: float
    depthwise: float
    depthwise_last: float
    depthwise_weight: float
    depthwise_weight_last: float
    depthwise_full: float
    attention_full: float
    channels: float
    grouped: float
    grouped_last: float
    odd_groups: float
    odd_groups_last: float
    odd_width: float
    transposes: float
    transposes_tf32: float
    cache: float
    accesses: float
    narrow: float
    kernel: float
    host: float


NAMES = tuple(field.name for field in fields(Constants))

# Memory efficiencies of kinds that are too small a part of published steps to be fitted.
_OTHERS = {"reduction": 0.72, "pool": 0.58, "index": 0.4}
_VECTOR_RATE = 0.25
"""Share of fp32's peak that a half-precision depthwise convolution reaches if memory does not limit
it."""
_ATTENTION_RATE = 0.5
"""Share of the tensor cores' peak that fused attention reaches (FlashAttention-2, arXiv:2307.08691,
figure 5: 50 to 73 % forward on an A100; below that for short sequences and for the backward)."""
_CACHE = 6.0
"""Cache size, in MiB, at which `Constants.cache` does not change the bandwidth."""
_OPERATIONS = 1024
"""Operations of a multiprocessor per clock cycle: the half-precision rate of Volta and Turing."""
_SHARPNESS = 3.0
_HOST_SHARPNESS = 4.0


class Kernels(NamedTuple):
    """The time of one call, for each row of a workload, in seconds.

    Attributes:
        compute: Time of the arithmetic alone.
        memory: Time of the memory traffic alone.
        total: Time of the whole call, including transposes around it and the fixed time.
        launch: Fixed time of the call's kernels.
    """

    compute: NDArray[np.float64]
    memory: NDArray[np.float64]
    total: NDArray[np.float64]
    launch: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepTime:
    """The predicted time of a step, in seconds.

    Attributes:
        seconds: Time of the whole step.
        device: Time of all kernels, one after another.
        host: Time of the host to launch all kernels.
        shares: The shares of `device` that are limited by compute, bandwidth and launches.
    """

    seconds: float
    device: float
    host: float
    shares: dict[Bound, float]

    @property
    def bound(self) -> Bound:
        """What limits the step most."""
        if self.host > self.device:
            return "host"
        return max(self.shares, key=self.shares.__getitem__)


@cache
def alike(architecture: str) -> str:
    """Return the architecture whose measurements stand for another one that has none."""
    found: dict[str, str] = json.loads(FILE.read_text())["current"]["alike"]
    return found.get(architecture, architecture)


@cache
def constants(architecture: str = "") -> Constants:
    """Return the fitted constants of an architecture; by default, those of published speeds.

    Where current software was measured, its constants differ: those of the nearest architecture
    that was measured, by `alike` of the file.
    """
    found = json.loads(FILE.read_text())
    fitted = found["current"]["fitted"].get(alike(architecture), {})
    return Constants(**found["constants"] | fitted)


def kernels(work: Workload, fitted: Constants) -> Kernels:
    """Return the time of one call of every row."""
    compute, memory = _compute(work, fitted), _memory(work, fitted)
    together = (compute**_SHARPNESS + memory**_SHARPNESS) ** (1 / _SHARPNESS)
    launch = work.launches * fitted.kernel * 1e-6
    total = (together + _transposes(work, fitted) + launch) * work.correction
    return Kernels(compute, memory, total, launch)


def step_time(work: Workload, fitted: Constants | None = None) -> StepTime:
    """Predict the time of a step."""
    fitted = fitted or constants(work.architecture)
    found = kernels(work, fitted)
    device = float(found.total @ work.count)
    host = float(work.launches @ work.count) * (work.launch or fitted.host * 1e-6)
    seconds = float(with_host(device, host))
    by_launch = found.launch > found.total / 2
    by_compute = ~by_launch & (found.compute > found.memory)
    spent = found.total * work.count / device
    shares: dict[Bound, float] = {
        "compute": float(spent[by_compute].sum()),
        "bandwidth": float(spent[~by_compute & ~by_launch].sum()),
        "launches": float(spent[by_launch].sum()),
    }
    return StepTime(seconds, device, host, shares)


def with_host(device: Any, host: Any) -> Any:
    """Return the time of a step from the time of its kernels and the time to launch them."""
    return (device**_HOST_SHARPNESS + host**_HOST_SHARPNESS) ** (1 / _HOST_SHARPNESS)


def _compute(work: Workload, fitted: Constants) -> NDArray[np.float64]:
    """Return the time of arithmetic in seconds; 0 for rows that are not products."""
    rate = np.where(work.half, fitted.half, np.where(work.tf32, fitted.tf32, fitted.fp32))
    throttled = 1 / np.sqrt(1 + (work.load / fitted.load) ** 2)
    rate = rate * np.where(work.half | work.tf32, throttled, 1.0)
    rate = rate * np.where(work.of_weight, fitted.weight, 1.0)
    grouped = np.where(work.channels_last, fitted.grouped_last, fitted.grouped)
    rate = rate * np.where(work.of("grouped"), grouped, 1.0)
    rate = rate * np.where(work.misaligned, 0.5, 1.0) * np.where(work.narrow, fitted.narrow, 1.0)
    quick = work.filtered & ~work.half & ~work.tf32
    rate = rate * np.where(quick, fitted.winograd, 1.0)
    ramp = fitted.ramp * work.peak / (work.ticks * _OPERATIONS)
    tiled = work.tiling.operations(ramp) / (work.peak * rate)
    found = np.where(work.of("conv", "grouped", "gemm", "recurrent"), tiled, 0.0)
    odd = np.where(work.channels_last, fitted.odd_groups_last, fitted.odd_groups)
    reused = work.width / (work.width + fitted.odd_width)
    found = np.where(work.odd_groups, work.flops / (work.vector * odd * reused), found)
    by_vectors = work.vector * np.where(work.half_data, _VECTOR_RATE, fitted.depthwise_full)
    found = np.where(work.of("depthwise"), work.flops / by_vectors, found)
    fused = np.where(
        work.half_data, work.peak * _ATTENTION_RATE, work.vector * fitted.attention_full
    )
    return np.where(work.of("attention"), work.flops / fused, found)


def _efficiency(work: Workload, fitted: Constants) -> NDArray[np.float64]:
    """Return the memory efficiency of each row: the share of the bandwidth that it reaches."""
    by_kind = np.full(len(KINDS), fitted.bandwidth)
    products = dict.fromkeys(PRODUCTS, fitted.operands)
    kinds = {
        **products,
        "norm": fitted.norm,
        "row norm": fitted.row_norm,
        "softmax": fitted.softmax,
        "copy": fitted.copy,
        **_OTHERS,
    }
    for kind, share in kinds.items():
        by_kind[KINDS.index(kind)] = share
    last = np.where(work.of_weight, fitted.depthwise_weight_last, fitted.depthwise_last)
    first = np.where(work.of_weight, fitted.depthwise_weight, fitted.depthwise)
    depthwise = np.where(work.channels_last, last, first)
    reached = np.where(work.of("depthwise"), depthwise, by_kind[work.kind])
    native = np.where(work.channels_last, fitted.norm_native_last, fitted.norm_native)
    idle = 1 + work.sms / work.groups
    reached = reached * np.where(work.native_norm, native / idle, 1.0)
    in_one_piece = work.of("conv", "grouped") & work.channels_last
    return reached * np.where(in_one_piece, fitted.operands_last, 1.0)


def _bandwidth(work: Workload, fitted: Constants) -> NDArray[np.float64]:
    return work.bandwidth * (work.cache / _CACHE) ** fitted.cache


def _memory(work: Workload, fitted: Constants) -> NDArray[np.float64]:
    """Return the time of memory traffic in seconds, including load and store instructions."""
    traffic = work.moved / (_bandwidth(work, fitted) * _efficiency(work, fitted))
    idle = 1 + fitted.channels * work.sms / work.groups
    traffic = traffic * np.where(work.of("depthwise") & work.of_weight, idle, 1.0)
    searched = work.elements / (work.ticks * fitted.pool_first)
    traffic = np.where(work.pooled_first, np.maximum(traffic, searched), traffic)
    tiled = work.of("conv", "grouped", "gemm", "recurrent", "attention")
    return np.where(tiled, traffic, _issued(work, traffic, 1.0, fitted))


def _issued(
    work: Workload, traffic: NDArray[np.float64], passes: float, fitted: Constants
) -> NDArray[np.float64]:
    """Return a smooth maximum of the times of memory traffic and of its instructions."""
    handled = passes * work.accesses / (work.ticks * fitted.accesses)
    bounded: NDArray[np.float64] = (traffic**4 + handled**4) ** 0.25
    return bounded


def _transposes(work: Workload, fitted: Constants) -> NDArray[np.float64]:
    """Return the time of copies around kernels that require images in another memory layout.

    Tensor cores require NHWC with channels padded to a multiple of 8; other kernels require NCHW.
    """
    share = np.where(work.half, fitted.transposes, np.where(work.tf32, fitted.transposes_tf32, 0))
    copied = work.of("conv", "grouped") & (~work.channels_last | work.narrow)
    share = np.where(work.converted, 1.0, np.where(copied, share, 0.0))
    traffic = 2 * work.moved / (_bandwidth(work, fitted) * fitted.copy)
    return share * _issued(work, traffic, 2.0, fitted)
