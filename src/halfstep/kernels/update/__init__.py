"""Steps of Adam and SGD on bf16 weights in one pass over memory: `torch.ops.halfstep.update`.

It is an operator of torch, so that a recording of a step sees it. `reference.py` defines the
results, also on a CPU; `gpu.py` gives the same bits on CUDA.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from halfstep.kernels.update import reference
from halfstep.kernels.update.form import COUNTERS, GROUP, SPLIT, Device, Rule, Tensors

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["COUNTERS", "GROUP", "SPLIT", "Device", "Rule", "Tensors", "update"]


def update(tensors: Tensors, rule: Rule, device: Device) -> None:
    """Take a step, as `reference.update` does."""
    torch.ops.halfstep.update(
        *map(list, tensors), device.numbers, device.places, device.draws, device.found_inf,
        device.lost, rule.kind, rule.settings, rule.nesterov, rule.maximize, device.seed,
    )  # fmt: skip


def _update(on: str, *given: Any) -> None:
    lists: Sequence[Any] = given[:7]
    numbers, places, draws, found_inf, lost, kind, settings, nesterov, maximize, seed = given[7:]
    rule = Rule(kind, tuple(settings), nesterov, maximize)
    device = Device(numbers, places, draws, found_inf, seed, lost)
    kernels: Any = reference
    if on == "CUDA":
        try:
            from halfstep.kernels.update import gpu as kernels
        except ImportError:  # no Triton for this platform
            kernels = reference
    kernels.update(Tensors(*lists), rule, device)


_operators = torch.library.Library("halfstep", "FRAGMENT")
_operators.define(
    "update(Tensor(a!)[] weights, Tensor[] gradients, Tensor(b!)[] corrections, "
    "Tensor(c!)[] first, Tensor(d!)[] second, Tensor(e!)[] first_scales, "
    "Tensor(f!)[] second_scales, Tensor numbers, Tensor places, Tensor draws, Tensor? found_inf, "
    "Tensor(g!)? lost, str kind, float[] settings, bool nesterov, bool maximize, int seed) -> ()"
)
for _device in ("CPU", "CUDA"):
    _operators.impl("update", partial(_update, _device), _device)
_operators.impl("update", lambda *_: None, "Meta")
