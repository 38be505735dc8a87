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

from halfstep.engine.closing.fused import start_momentum
from halfstep.engine.parallel.wrappers import wrapper_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.engine.assemble import Assembly
    from halfstep.engine.window.window import Window


def refusals(assembly: Assembly) -> list[str]:
    """Return why steps of an engine cannot be replayed: a sentence for each reason, or nothing."""
    return [
        *_of_engine(assembly),
        *(why for each in assembly.windows for why in _of(each, assembly)),
    ]


def _of_engine(assembly: Assembly) -> Iterator[str]:
    wrappers = {wrapper_of(model) for model in assembly.models} - {None, "torch.compile"}
    if assembly.ranks.size > 1 or wrappers:
        yield "several processes or devices train together, and the host starts their reductions"
    if assembly.checks and assembly.nonfinite == "raise":
        yield "nonfinite='raise' lets the host decide by the gradients; write nonfinite='skip'"
    if assembly.settlement.schedulers:
        yield (
            "the scheduler does not move over a skipped step, which the host decides; step it "
            "yourself after each step, and give the optimizer its learning rate as a tensor"
        )


def _of(window: Window, assembly: Assembly) -> Iterator[str]:
    optimizer, kind = window.optimizer, type(window.optimizer).__name__
    if window.needs_closure:
        yield f"{kind} evaluates the loss inside its step, as often as its numbers ask for"
        return
    if type(optimizer) not in (SGD, Adam, AdamW):
        yield (
            f"{kind} is not known to change its state in place and to read nothing; write SGD, Adam "
            "or AdamW of torch.optim, with fused=True"
        )
        return
    fused = all(group["fused"] for group in optimizer.param_groups)
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
    elif fused and not start_momentum(optimizer):
        yield "SGD with dampening cannot skip its first step on the device; write dampening=0"
    for technique in assembly.techniques:
        if not technique.skips_on_device:
            yield (
                "update='stochastic' and 'kahan' round the weights of a skipped step too, so the "
                "host decides whether to take it; write nonfinite='apply'"
            )
