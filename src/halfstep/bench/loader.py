"""Images per second of the data pipeline alone, against the number of workers.

Reading, decoding, transforms, and what `Data.prepare` does on the device; no model. What a config
trains with is measured as it is, so that the workers share the processors with nothing but this.
"""

from __future__ import annotations

import gc
import itertools
import time
from typing import TYPE_CHECKING

import torch

from halfstep.bench.arguments import parse_counts
from halfstep.bench.outcome import subject
from halfstep.bench.sweep import Quantity, Sweep
from halfstep.bench.turns import take_turns
from halfstep.plurals import counted
from halfstep.show.units import rate
from halfstep.train import data
from halfstep.train.environment import pick_device

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from rich.console import Console

    from halfstep.bench.outcome import Outcome
    from halfstep.train.config import Config
    from halfstep.train.data import Data
    from halfstep.train.data.pipeline.batches import Batch

_AHEAD = 2
"""Batches that torch's DataLoader lets each worker load ahead."""


def bench(
    config: Config,
    *,
    options: Sequence[str],
    workers: str,
    steps: int,
    rounds: int,
    console: Console,
) -> Outcome:
    """Measure a config's data pipeline.

    Args:
        config: Whose data; its batch_size and device count too.
        options: What was overridden of it, to be told.
        workers: Values of data.workers with commas between.
        steps: Batches that are timed in each turn.
        rounds: How often each value is measured.
        console: Is told how it goes.

    Raises:
        UserError: If anything given is wrong, or the data cannot be had.
    """
    device = pick_device(config.device)
    wanted = parse_counts("--workers", workers, least=0)
    counts = tuple(dict.fromkeys(data.usable_workers(count) for count in wanted))
    quantity = Quantity("images /s", "more", rate)
    sweep = Sweep("data.workers", tuple(map(str, counts)), quantity)
    skipped = _AHEAD * counts[-1] + 1
    loaded = counted(steps, "batch", "batches")
    said = (
        f"Each measurement loads the same {loaded} of {counted(config.batch_size, 'image')} after "
        f"{counted(skipped, 'warm-up batch', 'warm-up batches')}. "
        "The files were read once before, so they come from memory."
    )
    notes = [said]
    if len(counts) < len(wanted):
        notes.append(
            "halfstep starts at most one worker per processor: "
            f"{data.usable_workers(wanted[-1])} instead of {wanted[-1]} here."
        )
    # What is slow only once is not to be the first setting's: imports, and files from the disk.
    images_per_second(config, device, counts[-1], steps=steps, skipped=skipped)
    figures = take_turns(
        counts,
        rounds,
        lambda count: images_per_second(config, device, count, steps=steps, skipped=skipped),
        label=lambda count: f"data.workers={count}",
        write=lambda figure: f"{rate(figure)} images/s",
        console=console,
    )
    return sweep.outcome(subject("loader", config.name, options, device), figures, notes)


def images_per_second(
    config: Config, device: torch.device, workers: int, *, steps: int, skipped: int
) -> float:
    """Load and prepare batches as fast as they come; epochs follow each other.

    Args:
        config: Whose data.
        device: Where batches go.
        workers: Of data.workers.
        steps: Batches that are timed.
        skipped: Batches before them: at least as many as the workers load ahead, so that as much is
            under way at the start as at the end.

    Returns:
        The images per second.
    """
    loaded = data.load(
        config.data.model_copy(update={"workers": workers}),
        batch_size=config.batch_size,
        seed=config.seed,
        device=device,
    )
    stream = _endless(loaded)
    seen = 0
    try:
        for epoch, number, batch in itertools.islice(stream, skipped):
            loaded.prepare(*batch, device=device, train=True, epoch=epoch, number=number)
        _wait(device)
        began = time.perf_counter()
        for epoch, number, batch in itertools.islice(stream, steps):
            loaded.prepare(*batch, device=device, train=True, epoch=epoch, number=number)
            seen += len(batch[1])
        _wait(device)
        return seen / (time.perf_counter() - began)
    finally:
        # The workers live as long as the loader; they are not to take time from the next turn.
        stream.close()
        del loaded, stream
        gc.collect()


def _endless(loaded: Data) -> Generator[tuple[int, int, Batch]]:
    for epoch in itertools.count(1):
        for number, batch in enumerate(loaded.train.epoch(epoch)):
            yield epoch, number, batch


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
