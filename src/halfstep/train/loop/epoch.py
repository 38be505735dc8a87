"""One epoch of training, from the current batch to the end of the epoch or of the run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfstep.train.task.in_step import in_step

if TYPE_CHECKING:
    from halfstep.engine import StepResult
    from halfstep.train.loop.saving import CheckpointWriter
    from halfstep.train.run.microbatch import MicroBatches
    from halfstep.train.run.observer import Observers
    from halfstep.train.run.training import Training


@dataclass(frozen=True, slots=True)
class Loop:
    """The objects that the training loop uses.

    Attributes:
        training: The run in progress.
        observers: The observers of the run.
        micro_batches: Runs the forward and backward passes.
        checkpoints: Writes the checkpoints.
    """

    training: Training
    observers: Observers
    micro_batches: MicroBatches
    checkpoints: CheckpointWriter


def train_epoch(loop: Loop) -> None:
    """Train to the end of the epoch, to the run's last step, or until the run fails.

    Raises:
        LossScaleCollapse: If the loss scale collapsed.
        Asked: If any process received a signal. All processes are then between the same two
            micro-batches.
        FailedElsewhere: If another process has an error.
    """
    training, observers, micro_batches = loop.training, loop.observers, loop.micro_batches
    if training.all_steps_done:
        return
    setup, progress = training.setup, training.progress
    engine, data, processes = setup.engine, setup.task.data, setup.processes
    observers.call("after_pause")
    # Start at the first batch of the open window: if memory runs out, the whole window is rerun.
    start = progress.batch - progress.batch % engine.accumulate
    portions = in_step(processes, data.train, progress.epoch, start)
    batches = engine.batches(portions, to=setup.device)
    add, counted = observers.around_micro_batch(micro_batches.add), observers.calls("micro_batch")
    windows, accumulate = _Windows(loop), engine.accumulate
    for number, portion in enumerate(batches, start):
        observers.call("batch_loaded")
        images, labels = data.prepare(
            *portion.batch,
            device=setup.device,
            train=True,
            epoch=progress.epoch,
            # A different number on each process, so that their random augmentations differ.
            number=number * processes.size + processes.rank,
        )
        observers.call("batch_prepared")
        if processes.size > 1:
            micro_batches.expect(portion)
        if number < progress.batch:
            micro_batches.remember(images, labels)
            continue
        loss, logits = add(images, labels)
        if portion.counted:
            for call in counted:
                call(loss, logits, labels)
        progress.images += portion.total
        progress.batch = number + 1
        last = batches.is_last
        if not (last or (number + 1) % accumulate == 0):
            micro_batches.step()
            continue
        if windows.close(last=last):
            break
    engine.flush()


class _Windows:
    """Closes the accumulation windows of an epoch; values shared by all windows are set once."""

    def __init__(self, loop: Loop) -> None:
        training, observers = loop.training, loop.observers
        self._loop = loop
        self._progress = training.progress
        self._vetoes = observers.has("veto")
        self._before_step = observers.calls("before_step")
        self._stepped = observers.calls("stepped")
        self._step_done = observers.calls("step_done")
        self._log_every = training.config.log_every
        self._save_every = training.config.checkpoints.every_steps
        self._steps = training.setup.steps
        self._forget = loop.micro_batches.close if training.config.auto_microbatch else None

    def close(self, *, last: bool) -> bool:
        """Run or skip the optimizer step, then record figures and save a checkpoint if due.

        Args:
            last: Whether the window is the last one of the epoch.

        Returns:
            Whether the run ends with this step.
        """
        loop, progress = self._loop, self._progress
        training, observers = loop.training, loop.observers
        if self._forget:
            self._forget()
        result: StepResult | None = None
        if self._vetoes and observers.any("veto"):
            training.leave_out()
        else:
            for call in self._before_step:
                call(last=last)
            result = self._loop.micro_batches.step(close=True)
        step = training.step
        for call in self._stepped:
            call(step, result)
        if step % self._log_every == 0 or last or step >= self._steps:
            _record_interval(training, observers, result)
            loop.checkpoints.finish_if_done()
        for call in self._step_done:
            call(result)
        every = self._save_every
        if every and step % every == 0 and not last and progress.status == "finished":
            loop.checkpoints.save_if_sound()
        return step >= self._steps or progress.status != "finished"


def _record_interval(training: Training, observers: Observers, result: StepResult | None) -> None:
    """Record the training figures of the steps since the last record."""
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
