"""One epoch of training, from the current batch to the end of the epoch or of the run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfstep.train.run.in_step import in_step

if TYPE_CHECKING:
    from halfstep.engine import StepResult
    from halfstep.train.loop.saving import CheckpointWriter
    from halfstep.train.run.microbatch import MicroBatches
    from halfstep.train.run.observer import Observers
    from halfstep.train.run.training import Training


@dataclass(frozen=True, slots=True)
class Loop:
    """What the loop works with.

    Attributes:
        training: The run.
        observers: Who watches it.
        micro_batches: Forward and backward.
        checkpoints: Where it is saved.
    """

    training: Training
    observers: Observers
    micro_batches: MicroBatches
    checkpoints: CheckpointWriter


def train_epoch(loop: Loop) -> None:
    """Train to the end of the epoch, to the run's last step, or until something goes wrong.

    Raises:
        LossScaleCollapse: If the loss scale cannot help any more.
        Asked: If a signal came, to whichever process; everything is between two micro-batches then.
        FailedElsewhere: If another process has an error.
    """
    training, observers, micro_batches = loop.training, loop.observers, loop.micro_batches
    if training.all_steps_done:
        return
    setup, progress = training.setup, training.progress
    engine, data, processes = setup.engine, setup.data, setup.processes
    observers.call("after_pause")
    # A window that was open when the run stopped may have to be made again.
    start = progress.batch - progress.batch % engine.accumulate
    portions = in_step(processes, data.train, progress.epoch, start)
    batches = engine.batches(portions, to=setup.device)
    for number, portion in enumerate(batches, start):
        observers.call("batch_loaded")
        images, labels = data.prepare(
            *portion.batch,
            device=setup.device,
            train=True,
            epoch=progress.epoch,
            # Each process mixes and erases in its own way.
            number=number * processes.size + processes.rank,
        )
        observers.call("batch_prepared")
        if processes.size > 1:
            micro_batches.expect(portion)
        if number < progress.batch:
            micro_batches.remember(images, labels)
            continue
        with observers.around_micro_batch():
            loss, logits = micro_batches.add(images, labels)
        if portion.counted:
            observers.call("micro_batch", loss, logits, labels)
        progress.images += portion.total
        progress.batch = number + 1
        if not (batches.is_last or progress.batch % engine.accumulate == 0):
            engine.step()
            continue
        _close_window(loop, last=batches.is_last)
        if training.all_steps_done or progress.status != "finished":
            break
    engine.flush()


def _close_window(loop: Loop, *, last: bool) -> None:
    """Step, or leave the step out; then log and save what is due."""
    training, observers = loop.training, loop.observers
    loop.micro_batches.close()
    result: StepResult | None = None
    if observers.any("veto"):
        training.leave_out()
    else:
        observers.call("before_step", last=last)
        result = training.setup.engine.step(close=True)
        training.progress.dropped_in_a_row = 0
    config, step = training.config, training.step
    observers.call("stepped", step, result)
    if step % config.log_every == 0 or last or training.all_steps_done:
        _record_interval(training, observers, result)
        loop.checkpoints.finish_if_done()
    observers.call("step_done", result)
    every = config.checkpoints.every_steps
    if training.progress.status == "finished" and every and step % every == 0 and not last:
        loop.checkpoints.save_if_sound()


def _record_interval(training: Training, observers: Observers, result: StepResult | None) -> None:
    """Read and record what has come up since the last line of figures."""
    engine = training.setup.engine
    seen = observers.figures("interval")
    norm = None if result is None else result.grad_norm
    figures = {
        "step": training.step,
        "epoch": training.progress.epoch,
        "lr": max(float(group["lr"]) for group in engine.optimizer.param_groups),
        "loss_scale": engine.loss_scale if result is None else result.loss_scale,
        "grad_norm": math.nan if norm is None else norm,
    }
    observers.record("train", {**figures, **seen})
