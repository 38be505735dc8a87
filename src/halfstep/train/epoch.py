"""One epoch of training, from wherever in it the run stands to its end or the run's."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from halfstep.train.in_step import in_step

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from halfstep.engine import StepResult
    from halfstep.train.checkpoint import Which
    from halfstep.train.training import Training

_Item = TypeVar("_Item")


def train_epoch(training: Training) -> None:
    """Train to the end of the epoch, to the run's last step, or until something goes wrong.

    Raises:
        LossScaleCollapse: If the loss scale cannot help any more.
        Asked: If a signal came, to whichever process; everything is between two micro-batches then.
        FailedElsewhere: If another process has an error.
    """
    if training.all_steps_done:
        return
    setup, progress = training.setup, training.progress
    engine, data, processes = setup.engine, setup.data, setup.processes
    training.step_times.begin()
    # A window that was open when the run stopped may have to be made again.
    start = progress.batch - progress.batch % engine.accumulate
    loaded = in_step(processes, data.train, progress.epoch, start)
    for number, (portion, last) in enumerate(engine.batches(_with_last(loaded)), start):
        images, labels = data.prepare(
            *portion.batch,
            device=setup.device,
            train=True,
            epoch=progress.epoch,
            # Each process mixes and erases in its own way.
            number=number * processes.size + processes.rank,
        )
        if processes.size > 1:
            training.micro_batches.expect(portion)
        if number < progress.batch:
            training.micro_batches.remember(images, labels)
            continue
        with training.nonfinite.guarding():
            loss, logits = training.micro_batches.add(images, labels)
        if portion.counted:
            training.meter.add(loss, logits, labels)
            training.nonfinite.add(loss)
        progress.images += portion.total
        progress.batch = number + 1
        if not (last or progress.batch % engine.accumulate == 0):
            engine.step()
            continue
        _close_window(training, last=last)
        if training.all_steps_done or progress.status != "finished":
            break
    engine.flush()


def _close_window(training: Training, *, last: bool) -> None:
    """Step, or leave the step out; then log and save what is due."""
    training.micro_batches.close()
    result: StepResult | None = None
    refused = training.nonfinite.refuses()
    if refused:
        training.nonfinite.drop()
    else:
        training.probes.before_step(last=last)
        result = training.setup.engine.step(close=True)
        training.probes.after_step(result)
        training.nonfinite.keep()
    config, step = training.config, training.step
    training.meter.close(step, result)
    training.step_times.step_done()
    if step % config.log_every == 0 or last or training.all_steps_done:
        training.log(result)
    if refused:
        leave_behind(training)
    every = config.checkpoints.every_steps
    if training.progress.status == "finished" and every and step % every == 0 and not last:
        save_if_sound(training)


def leave_behind(training: Training) -> None:
    """After a loss that was not finite: go back to a checkpoint if asked to, or give up."""
    progress = training.progress
    if progress.first_nonfinite_step is None:
        progress.first_nonfinite_step = training.step
    hopeless = training.nonfinite.is_hopeless()
    if hopeless:
        progress.stop("nonfinite", hopeless)
    elif training.config.on_nonfinite == "rollback":
        training.roll_back()


def save_if_sound(
    training: Training,
    *names: Which,
    validated: bool = False,
    confusion: torch.Tensor | None = None,
) -> None:
    """Write a checkpoint, unless it would be one that nobody wants to go back to.

    Args:
        training: The run.
        names: What else it is from now on.
        validated: Whether the newest validation is of these weights.
        confusion: Counts of the best validation, if this is it; see `metrics.write_tables`.
    """
    if training.config.on_nonfinite == "rollback" and not training.weights_are_finite():
        leave_behind(training)
    else:
        training.save(*names, validated=validated, confusion=confusion)


def _with_last(items: Iterator[_Item]) -> Iterator[tuple[_Item, bool]]:
    """Yield each item and whether it is the last."""
    ahead = list(islice(items, 1))
    while ahead:
        current = ahead.pop()
        ahead.extend(islice(items, 1))
        yield current, not ahead
