"""Measures the images per second of the data pipeline alone, for several numbers of workers.

The pipeline consists of the reading, decoding and transforms of a config's data, and `Data.prepare`
on the device. No model runs, so the workers share the processors only with the pipeline itself.
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
        config: The config with the data, the batch size and the device.
        options: The overrides in `config`, to be printed.
        workers: Values of data.workers, separated by commas.
        steps: Batches to time in each turn.
        rounds: The number of measurements of each setting.
        console: Prints the progress.

    Raises:
        UserError: If an argument is invalid, or the data cannot be loaded.
    """
    device = pick_device(config.device)
    wanted = parse_counts("--workers", workers, least=0)
    counts = tuple(dict.fromkeys(data.usable_workers(count) for count in wanted))
    quantity = Quantity("images /s", "more", rate)
    sweep = Sweep("data.workers", tuple(map(str, counts)), quantity)
    skipped = _AHEAD * counts[-1] + 1
    loaded = counted(steps, "batch", "batches")
    text = (
        f"Each measurement loads the same {loaded} of {counted(config.batch_size, 'image')} after "
        f"{counted(skipped, 'warm-up batch', 'warm-up batches')}. "
        "The files were read once before, so they come from memory."
    )
    notes = [text]
    if len(counts) < len(wanted):
        notes.append(
            "halfstep starts at most one worker per processor: "
            f"{data.usable_workers(wanted[-1])} instead of {wanted[-1]} here."
        )
    # Imports and reading files from the disk are slow only once, but not in the first measurement.
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
    """Load and prepare batches as fast as possible, from as many epochs as needed.

    Args:
        config: The config with the data.
        device: The device to which batches are copied.
        workers: The value of data.workers.
        steps: Batches to time.
        skipped: Batches before them that are not timed: at least as many as the workers load ahead,
            so that as many batches are in progress at the start as at the end.

    Returns:
        The images per second.
    """
    loaded = data.load(
        config.data.model_copy(update={"workers": workers}),
        batch_size=config.batch_size,
        seed=config.seed,
        device=device,
        drop_last=config.drop_last,
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
        # The workers live as long as the loader, and would take time from the next turn.
        stream.close()
        del loaded, stream
        gc.collect()


def _endless(loaded: Data) -> Generator[tuple[int, int, Batch]]:
    for epoch in itertools.count(1):
        for number, batch in enumerate(loaded.train.epoch(epoch)):
            yield epoch, number, batch


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
