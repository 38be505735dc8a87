"""The time of a training step on a GPU, from what its operators ask for.

Each kernel takes a smooth maximum of its arithmetic and its memory traffic, and a few microseconds;
a step, a smooth maximum of all kernels and of the host that launches them. What the constants are
was fitted to published measurements (`benchmarks/fit_costs.py`); structure follows the roofline
model (Williams et al., 2009, doi:10.1145/1498765.1498785) with tiles and waves.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from halfstep.advise.operators import KINDS, PRODUCTS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from halfstep.advise.workload import Workload

FILE = Path(__file__).with_name("constants.json")

Bound = Literal["compute", "bandwidth", "launches", "host"]


@dataclass(frozen=True, slots=True)
class Constants:
    """What datasheets do not say. Efficiencies are shares of a datasheet's figure.

    Attributes:
        half: Of half products on tensor cores.
        tf32: Of TF32 products.
        fp32: Of fp32 products outside tensor cores.
        winograd: Of 3x3 convolutions outside tensor cores, beside others: Winograd's algorithm
            takes fewer multiplications (Lavin and Gray, arXiv:1509.09308).
        ramp: What a tile costs beside its products, in units of K at `_OPERATIONS` a clock cycle:
            it takes cycles, whatever the rate of products.
        weight: Of products that give a weight's gradient, beside the others.
        load: TFLOP/s a watt at which a GPU's power limit begins to lower its clock.
        bandwidth: Of pointwise operators.
        operands: Of what matrix products and convolutions read and write.
        operands_last: Of what convolutions read and write where channels come last, beside others:
            the channels of a pixel are read in one piece.
        norm: Of norms over a batch or a group of channels.
        row_norm: Of norms over a row: LayerNorm, RMSNorm.
        softmax: Of softmax and losses.
        copy: Of copies, casts and transposes.
        depthwise: Of depthwise convolutions in NCHW, forward and for the input's gradient.
        depthwise_last: The same where channels come last.
        depthwise_weight: For the gradient of the weights, in NCHW.
        depthwise_weight_last: The same where channels come last.
        channels: Channels for each multiprocessor at which that gradient reaches half of this: its
            kernels run a few blocks a channel, so that few channels leave a GPU idle.
        grouped: Of grouped convolutions in NCHW, beside ungrouped ones.
        grouped_last: The same where channels come last.
        odd_groups: Of grouped convolutions that run outside tensor cores in NCHW, of fp32's peak.
        odd_groups_last: The same where channels come last.
        odd_width: Channels of such a group at which they reach half of that, as an operand that is
            loaded serves the channels of its own group alone.
        transposes: Share of half convolutions in NCHW whose input and output are transposed, and of
            those in NHWC with narrow channels, whose input and output are padded.
        transposes_tf32: The same of TF32's.
        cache: Exponent with which a larger cache raises the bandwidth.
        accesses: Elements that a multiprocessor reads or writes in a clock cycle.
        narrow: Of half convolutions whose channels are no multiple of 8, beside others.
        kernel: Microseconds of a kernel beside its work.
        host: Microseconds of the host for a kernel.
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
    row_norm: float
    softmax: float
    copy: float
    depthwise: float
    depthwise_last: float
    depthwise_weight: float
    depthwise_weight_last: float
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

# Kinds that are too small a part of published steps to be fitted.
_OTHERS = {"reduction": 0.72, "pool": 0.58, "index": 0.4}
_VECTOR_RATE = 0.25
"""Share of fp32's peak that a depthwise convolution reaches where it is not bound by memory."""
_ATTENTION_RATE = 0.5
"""Share of the tensor cores' peak that fused attention reaches (FlashAttention-2, arXiv:2307.08691,
figure 5: 50 to 73 % forward on an A100; below that for short sequences and for the backward)."""
_CACHE = 6.0
"""MiB of cache of the GPU that bandwidths are relative to."""
_OPERATIONS = 1024
"""Floating-point operations of a multiprocessor in a clock cycle: half ones on Volta and Turing."""
_SHARPNESS = 3.0
_HOST_SHARPNESS = 4.0


class Kernels(NamedTuple):
    """Seconds of one call of each row.

    Attributes:
        compute: Of arithmetic alone.
        memory: Of memory traffic alone.
        total: Of the kernel, with transposes around it and what a launch takes.
        launch: What a launch takes.
    """

    compute: NDArray[np.float64]
    memory: NDArray[np.float64]
    total: NDArray[np.float64]
    launch: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepTime:
    """The predicted time of a step.

    Attributes:
        seconds: The whole.
        device: Of its kernels, one after another.
        host: Of launching them.
        shares: Share of the kernels' time that each of compute, bandwidth and launches bounds.
    """

    seconds: float
    device: float
    host: float
    shares: dict[Bound, float]

    @property
    def bound(self) -> Bound:
        """What most of the time is spent on."""
        if self.host > self.device:
            return "host"
        return max(self.shares, key=self.shares.__getitem__)


@cache
def constants() -> Constants:
    """Return the fitted constants."""
    return Constants(**json.loads(FILE.read_text())["constants"])


def kernels(work: Workload, fitted: Constants) -> Kernels:
    """Return the seconds of every row."""
    compute, memory = _compute(work, fitted), _memory(work, fitted)
    together = (compute**_SHARPNESS + memory**_SHARPNESS) ** (1 / _SHARPNESS)
    launch = work.launches * fitted.kernel * 1e-6
    total = together + _transposes(work, fitted) + launch
    return Kernels(compute, memory, total, launch)


def step_time(work: Workload, fitted: Constants | None = None) -> StepTime:
    """Predict the time of a step."""
    fitted = fitted or constants()
    found = kernels(work, fitted)
    device = float(found.total @ work.count)
    host = float(work.launches @ work.count) * fitted.host * 1e-6
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
    """Return the time of a step from those of its kernels and of launching them."""
    return (device**_HOST_SHARPNESS + host**_HOST_SHARPNESS) ** (1 / _HOST_SHARPNESS)


def _compute(work: Workload, fitted: Constants) -> NDArray[np.float64]:
    """Return the time of arithmetic; 0 for rows that are no products."""
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
    found = np.where(work.of("depthwise"), work.flops / (work.vector * _VECTOR_RATE), found)
    return np.where(work.of("attention"), work.flops / (work.peak * _ATTENTION_RATE), found)


def _efficiency(work: Workload, fitted: Constants) -> NDArray[np.float64]:
    """Return the share of the bandwidth that each row reaches."""
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
    in_one_piece = work.of("conv", "grouped") & work.channels_last
    return reached * np.where(in_one_piece, fitted.operands_last, 1.0)


def _bandwidth(work: Workload, fitted: Constants) -> NDArray[np.float64]:
    return work.bandwidth * (work.cache / _CACHE) ** fitted.cache


def _memory(work: Workload, fitted: Constants) -> NDArray[np.float64]:
    """Return the time of memory traffic, and of the instructions that move it."""
    traffic = work.moved / (_bandwidth(work, fitted) * _efficiency(work, fitted))
    idle = 1 + fitted.channels * work.sms / work.groups
    traffic = traffic * np.where(work.of("depthwise") & work.of_weight, idle, 1.0)
    tiled = work.of("conv", "grouped", "gemm", "recurrent", "attention")
    return np.where(tiled, traffic, _issued(work, traffic, 1.0, fitted))


def _issued(
    work: Workload, traffic: NDArray[np.float64], passes: float, fitted: Constants
) -> NDArray[np.float64]:
    """Return the time of traffic where instructions that move elements may take longer."""
    handled = passes * work.accesses / (work.ticks * fitted.accesses)
    bounded: NDArray[np.float64] = (traffic**4 + handled**4) ** 0.25
    return bounded


def _transposes(work: Workload, fitted: Constants) -> NDArray[np.float64]:
    """Return the time of copies around kernels that do not take images as they lie.

    Tensor cores want them in NHWC, with channels padded to a multiple of 8; other kernels in NCHW.
    """
    share = np.where(work.half, fitted.transposes, np.where(work.tf32, fitted.transposes_tf32, 0))
    copied = work.of("conv", "grouped") & (~work.channels_last | work.narrow)
    share = np.where(work.converted, 1.0, np.where(copied, share, 0.0))
    traffic = 2 * work.moved / (_bandwidth(work, fitted) * fitted.copy)
    return share * _issued(work, traffic, 2.0, fitted)
