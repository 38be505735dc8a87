"""Exchange between the processes before an optimizer steps: found_inf, norms, sample counts.

Each process has values of its own. One all-reduce of a small vector gives all processes the same
values, so that all of them make the same decisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.engine.processes.shards import copies, is_sharded
from halfstep.kernels.gradients import multiply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.engine.processes.ranks import Ranks
    from halfstep.engine.window.window import Window


def agree(windows: Sequence[Window], ranks: Ranks) -> None:
    """Replace this process's measurements of closing windows by those over all processes.

    The found_inf flags and the sample counts are summed over processes, and so are the squared
    norms of sharded gradients. Windows that count samples get their remaining weight.

    Args:
        windows: Windows with unscaled, measured gradients; the same windows on all processes.
        ranks: The processes that train together.
    """
    if ranks.size == 1:
        return
    flags = [flag for window in windows for flag in window.found.values()]
    counting = [window for window in windows if window.full_samples is not None]
    sharing = [window for window in windows if any(map(is_sharded, window.reached))]
    squares = [_squares(window, ranks) for window in sharing]
    if not (flags or counting or squares):
        return
    device = (flags or squares or [windows[0].params[0]])[0].device
    parts = [flag.reshape(1) for flag in flags]
    parts += [torch.full((1,), window.samples, device=device) for window in counting]
    parts = [part.to(device, torch.float64) for part in (*parts, *squares)]
    sums = iter(ranks.sum(torch.cat(parts)).split([part.numel() for part in parts]))
    for window in windows:
        window.found = {loss_id: (next(sums)[0] > 0).float() for loss_id in window.found}
        window.update_found_inf()
    samples = [next(sums)[0] for _ in counting]
    for window in sharing:
        _set_norms(window, next(sums))
    for window, total in zip(counting, samples, strict=True):
        _weigh(window, total, ranks)


def _squares(window: Window, ranks: Ranks) -> torch.Tensor:
    """Return squared local norms, each divided by the number of processes that hold the part."""
    assert window.each_norm is not None
    held_by = [copies(param, ranks.size) for param in window.reached]
    squares = window.each_norm.double().square()
    if len(set(held_by)) == 1:
        return squares / held_by[0]
    return squares / torch.tensor(held_by, device=squares.device)


def _set_norms(window: Window, squares: torch.Tensor) -> None:
    assert window.each_norm is not None
    like = window.each_norm
    window.each_norm, window.grad_norm = squares.sqrt().to(like), squares.sum().sqrt().to(like)


def _weigh(window: Window, samples: torch.Tensor, ranks: Ranks) -> None:
    """Multiply gradients and norms by the remaining weight; `samples` is the sum over processes.

    If no process has samples, the weight does not matter, but it must be finite.
    """
    if window.each_norm is None or window.grad_norm is None or window.full_samples is None:
        return
    weight = window.full_samples * ranks.size / torch.where(samples > 0, samples, 1.0)
    multiply(window.grads, weight)
    window.each_norm = (window.each_norm * weight).to(window.each_norm)
    window.grad_norm = (window.grad_norm * weight).to(window.grad_norm)
