"""What closing windows hold, measured before any optimizer steps: true gradients, norms, found_inf.

Everything that a decision follows from is summed over the processes here, in one small vector, so
that all of them decide alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from halfstep.engine.gradients import dense_gradients, multiply, norms
from halfstep.engine.parallel.shards import copies, is_sharded
from halfstep.techniques.base import HALVES
from halfstep.techniques.gradients import keep_grad

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.engine.parallel.ranks import Ranks
    from halfstep.engine.scales import LossScales
    from halfstep.engine.slot import Slot
    from halfstep.engine.weights import Weight


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """A closing window with true gradients.

    Attributes:
        slot: Whose window it is.
        params: The parameters that have a gradient.
        each_norm: 2-norm of each gradient before clipping; None without any.
        grad_norm: 2-norm over all of them.
        found_inf: Whether one was not finite; None when nobody looked.
        loss_scale: The scale that they were made with; None without one.
    """

    slot: Slot
    params: list[torch.Tensor]
    each_norm: torch.Tensor | None
    grad_norm: torch.Tensor | None
    found_inf: torch.Tensor | None
    loss_scale: torch.Tensor | None


def measure(
    closing: Sequence[tuple[Slot, Weight]], *, scales: LossScales, ranks: Ranks, widens: bool
) -> list[Measured]:
    """Turn the gradients of closing windows into true ones and measure them.

    Args:
        closing: Whose windows close, each with what its gradients still lack.
        scales: The loss scales that they were made with.
        ranks: The processes that must agree.
        widens: Whether half gradients are kept in fp32 because they will be clipped.

    Returns:
        One entry for each window, the same on all processes.
    """
    measured = [_unscale(slot, weight, scales, widens) for slot, weight in closing]
    if ranks.size > 1:
        measured = _agree(measured, [weight for _, weight in closing], scales, ranks)
    return measured


def _unscale(slot: Slot, weight: Weight, scales: LossScales, widens: bool) -> Measured:
    found: torch.Tensor | None = None
    scale: torch.Tensor | None = None
    if scales or widens or weight:
        for param in slot.params:
            if param.grad is not None and param.grad.dtype in HALVES:
                keep_grad(param, torch.float32)
    if scales:
        shared = scales.shared
        assert shared is not None
        scale = shared.scale.clone()
        found = scales.unscale(slot, weight.factor)
    elif weight.factor != 1.0:
        for grad in dense_gradients(slot.params):
            grad.mul_(weight.factor)
    params = [param for param in slot.params if param.grad is not None]
    if not params:
        return Measured(slot, params, None, None, None, scale)
    each_norm = norms(dense_gradients(params))
    return Measured(slot, params, each_norm, torch.linalg.vector_norm(each_norm), found, scale)


def _agree(
    measured: Sequence[Measured], weights: Sequence[Weight], scales: LossScales, ranks: Ranks
) -> list[Measured]:
    """Replace what each process has found by what all of them have.

    Flags and counts are summed, and so are the squares of the norms of what the processes share.
    """
    flags = [each.found_inf for each in measured if each.found_inf is not None]
    flags += scales.found.values()
    counts = [weight for weight in weights if weight.samples]
    squares = [_squares(each, ranks) for each in measured if _shares(each)]
    if not (flags or counts or squares):
        return list(measured)
    device = (flags or squares or [measured[0].slot.params[0]])[0].device
    parts = [flag.reshape(1) for flag in flags]
    parts += [torch.full((1,), weight.samples, device=device) for weight in counts]
    parts = [part.to(device, torch.float64) for part in (*parts, *squares)]
    sums = iter(ranks.sum(torch.cat(parts)).split([part.numel() for part in parts]))
    agreed = [
        each if each.found_inf is None else replace(each, found_inf=_flag(next(sums)))
        for each in measured
    ]
    scales.found = {loss_id: _flag(next(sums)) for loss_id in scales.found}
    factors = {
        each.slot: weight.full * ranks.size / next(sums)[0]
        for each, weight in zip(measured, weights, strict=True)
        if weight.samples
    }
    agreed = [_with_norms(each, next(sums)) if _shares(each) else each for each in agreed]
    return [_multiplied(each, factors.get(each.slot)) for each in agreed]


def _flag(total: torch.Tensor) -> torch.Tensor:
    return (total[0] > 0).float()


def _shares(measured: Measured) -> bool:
    return any(is_sharded(param) for param in measured.params)


def _squares(measured: Measured, ranks: Ranks) -> torch.Tensor:
    """Return what this process adds to the squared norms; what several hold counts once."""
    assert measured.each_norm is not None
    held_by = [copies(param, ranks.size) for param in measured.params]
    squares = measured.each_norm.double().square()
    if len(set(held_by)) == 1:
        return squares / held_by[0]
    return squares / torch.tensor(held_by, device=squares.device)


def _with_norms(measured: Measured, squares: torch.Tensor) -> Measured:
    assert measured.each_norm is not None
    each_norm = squares.sqrt().to(measured.each_norm)
    grad_norm = squares.sum().sqrt().to(measured.each_norm)
    return replace(measured, each_norm=each_norm, grad_norm=grad_norm)


def _multiplied(measured: Measured, factor: torch.Tensor | None) -> Measured:
    if factor is None or measured.each_norm is None or measured.grad_norm is None:
        return measured
    multiply(dense_gradients(measured.params), factor)
    return replace(
        measured,
        each_norm=(measured.each_norm * factor).to(measured.each_norm),
        grad_norm=(measured.grad_norm * factor).to(measured.grad_norm),
    )
