"""One training step taken apart: data, forward, backward, unscaling, optimizer, and what is left.

Engine and data are driven in the order of `halfstep.train.epoch`, with its micro-batches, meter and
watch over losses, but without log lines, validation and checkpoints.
"""

from __future__ import annotations

import gc
import itertools
from statistics import median
from typing import TYPE_CHECKING

from halfstep.bench.dissection import Dissection
from halfstep.bench.marks import Marks, marked, total
from halfstep.bench.outcome import subject
from halfstep.bench.turns import take_turns
from halfstep.compare.arguments import parse_recipes
from halfstep.compare.units import milliseconds
from halfstep.errors import UserError
from halfstep.train.config.files import load
from halfstep.train.environment import pick_device
from halfstep.train.meter import Meter
from halfstep.train.microbatch import MicroBatches, out_of_memory_explained
from halfstep.train.nonfinite import NonFinite
from halfstep.train.progress import Progress
from halfstep.train.setup import set_up

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from halfstep.bench.marks import Seconds
    from halfstep.bench.outcome import Outcome
    from halfstep.train.config import Config
    from halfstep.train.data.batches import Batch
    from halfstep.train.setup import Setup


def bench(
    config: str,
    *,
    options: Sequence[str],
    device_name: str | None,
    recipes: str | None,
    steps: int,
    warmup: int,
    rounds: int,
    console: Console,
) -> Outcome:
    """Take the training step of a config apart under some recipes.

    Args:
        config: The name of a shipped config, or the path of a YAML file.
        options: Overrides of it.
        device_name: Where to run; the config's own choice when not given.
        recipes: Names with commas between; the config's own when not given.
        steps: Optimizer steps that are measured in each turn.
        warmup: Steps before them that are not.
        rounds: How often each recipe is measured.
        console: Is told how it goes.

    Raises:
        UserError: If anything given is wrong.
    """
    configs = _configs(config, options, device_name, recipes)
    first = next(iter(configs.values()))
    device = pick_device(first.device)
    rehearsed: dict[str, list[str]] = {}

    def measure(name: str) -> list[Seconds]:
        setup = set_up(_long_enough(configs[name], warmup + steps), device)
        rehearsed[name] = setup.engine.resolution.those("rehearsed")
        with setup.engine:
            taken = take_apart(setup, configs[name], steps=steps, warmup=warmup)
        # Its workers are not to take time from the next turn.
        del setup
        gc.collect()
        return taken

    found = take_turns(
        list(configs),
        rounds,
        measure,
        label=str,
        write=lambda each: f"{milliseconds(median(map(total, each)))} ms a step",
        console=console,
    )
    dissection = Dissection(dict(zip(configs, found, strict=True)), rehearsed, warmup)
    return dissection.outcome(subject("step", first.name, options, device))


def take_apart(setup: Setup, config: Config, *, steps: int, warmup: int) -> list[Seconds]:
    """Train, and return how long each part of each step took, those of the warm-up left out.

    Args:
        setup: What is trained.
        config: What it was made from.
        steps: Optimizer steps that are measured.
        warmup: Steps before them.
    """
    engine, data, device = setup.engine, setup.data, setup.device
    progress = Progress()
    micro_batches = MicroBatches(engine, config, progress)
    meter, nonfinite = Meter(device), NonFinite(engine, config, progress)
    marks = Marks(device)
    try:
        with out_of_memory_explained(config), marked(engine, marks):
            for step, (epoch, number, batch, closes) in _micro_steps(setup):
                marks.mark("data_wait")
                images, labels = data.prepare(
                    *batch, device=device, train=True, epoch=epoch, number=number
                )
                marks.mark("prepare")
                with nonfinite.guarding():
                    loss, logits = micro_batches.add(images, labels)
                meter.add(loss, logits, labels)
                nonfinite.add(loss)
                if not closes:
                    engine.step()
                    marks.mark("rest")
                    continue
                micro_batches.close()
                if nonfinite.refuses():
                    nonfinite.drop()
                    meter.close(step, None)
                else:
                    meter.close(step, engine.step(close=True))
                    nonfinite.keep()
                marks.mark("rest")
                marks.end_step()
                if step == warmup + steps:
                    break
            engine.flush()
    finally:
        nonfinite.close()
    return marks.seconds()[warmup:]


def _micro_steps(setup: Setup) -> Iterator[tuple[int, tuple[int, int, Batch, bool]]]:
    """Yield the number of the step from 1 on, and of each batch its place, and if it closes it."""
    step = 1
    for epoch in itertools.count(1):
        followed = itertools.pairwise(itertools.chain(setup.data.train.epoch(epoch), [None]))
        for number, (batch, following) in enumerate(setup.engine.batches(followed)):
            assert batch is not None
            closes = following is None or (number + 1) % setup.engine.accumulate == 0
            yield step, (epoch, number, batch, closes)
            step += closes


def _configs(
    config: str, options: Sequence[str], device: str | None, recipes: str | None
) -> dict[str, Config]:
    own = load(config, options, {"device": device})
    if recipes is None:
        return {own.build_recipe().name: own}
    spelled_out = own.build_recipe() if isinstance(own.recipe, dict) else None
    found = {}
    for name in parse_recipes(recipes, spelled_out):
        mine = None if spelled_out is not None and name == spelled_out.name else name
        found[name] = load(config, options, {"device": device, "recipe": mine})
        if found[name].build_recipe().name != name:
            raise UserError("--options sets 'recipe', which every row has its own of")
    return found


def _long_enough(config: Config, steps: int) -> Config:
    """Return the config with a run that is long enough for its schedule not to end."""
    return config.model_copy(update={"epochs": max(config.epochs, steps), "max_steps": None})
