"""The contract of a step that is replayed: what a step must be, so that a graph of it is that step.

A replay repeats the operators of one step on the same memory, with the same numbers of Python, and
runs no code of the engine or of its user. So

- what a step changes is a tensor that is changed in place: weights, the state of optimizers, loss
  scales, counters of random numbers, averages, running statistics;
- what a step reads from the step before is in such a tensor, a learning rate too if it moves;
- the host decides nothing by the numbers of the step: a non-finite step is skipped on the device.

What the host does after a step (schedulers, the history of a loss scale, warnings) is no part of
it. `refusals` names the parts of an engine that break the contract.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.optim import SGD, Adam, AdamW

from halfstep.engine.parallel.wrappers import wrapper_of
from halfstep.optim.eight_bit import Adam8

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from halfstep.engine.assemble import Assembly
    from halfstep.engine.window.window import Window


def refusals(assembly: Assembly, windows: Iterable[Window]) -> list[str]:
    """Return why steps of an engine cannot be replayed: a clause for each reason, or nothing.

    Args:
        assembly: The parts of the engine.
        windows: Those of its windows that the steps close.
    """
    of_optimizers = (why for window in windows for why in _of(window, assembly))
    return list(dict.fromkeys([*_of_engine(assembly), *of_optimizers]))


def _of_engine(assembly: Assembly) -> Iterator[str]:
    wrappers = {wrapper_of(model) for model in assembly.models} - {None, "torch.compile"}
    if assembly.ranks.size > 1 or wrappers:
        yield "several processes or devices train together, and the host starts their reductions"
    if assembly.checks and assembly.nonfinite == "raise":
        yield "nonfinite='raise' lets the host decide by the gradients; write nonfinite='skip'"


def _of(window: Window, assembly: Assembly) -> Iterator[str]:
    optimizer, kind = window.optimizer, type(window.optimizer).__name__
    if window.needs_closure:
        yield f"{kind} evaluates the loss inside its step, as often as its numbers ask for"
        return
    on_device = type(optimizer) is Adam8 or any(
        technique.steps_in_one_kernel(optimizer) for technique in assembly.techniques
    )
    if type(optimizer) not in (SGD, Adam, AdamW) and not on_device:
        yield (
            f"{kind} is not known to change its state in place and to read nothing; write SGD, "
            "Adam or AdamW of torch.optim, with fused=True"
        )
        return
    fused = on_device or all(group["fused"] for group in optimizer.param_groups)
    if not fused and type(optimizer) is not SGD:
        yield f"{kind} counts its steps on the host; write {kind}(..., fused=True)"
    checked = assembly.checks or assembly.scales
    if not checked:
        return
    if not fused and type(optimizer) is SGD:
        yield (
            "the host decides whether SGD skips a non-finite step; write SGD(..., fused=True), or, "
            "without a loss scale, nonfinite='apply'"
        )
    elif any(group.get("dampening") for group in optimizer.param_groups):
        yield "SGD with dampening cannot skip its first step on the device; write dampening=0"
    for technique in assembly.techniques:
        if not technique.skips_on_device:
            yield (
                "update='stochastic' and 'kahan' round the weights of a skipped step too, so the "
                "host decides whether to take it; write nonfinite='apply'"
            )
