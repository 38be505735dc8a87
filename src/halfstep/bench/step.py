"""Measures the parts of a training step: data, forward, backward, unscaling, optimizer, the rest.

An observer marks the parts in the trainer's own loop, together with the trainer's observers that
measure every step and check every loss.
"""

from __future__ import annotations

import gc
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from halfstep.bench.dissection import Dissection
from halfstep.bench.marks import Marks, marked, total
from halfstep.bench.outcome import subject
from halfstep.bench.turns import take_turns
from halfstep.errors import UserError
from halfstep.recipe.parse import parse_recipes
from halfstep.show.units import milliseconds
from halfstep.train.build.setup import set_up
from halfstep.train.config.files import load, parse_options
from halfstep.train.config.loop import CheckpointsConfig
from halfstep.train.environment import on_threads, pick_device
from halfstep.train.loop.epoch import train_epoch
from halfstep.train.loop.loop import assemble
from halfstep.train.observers.observing import steps_and_losses
from halfstep.train.run.microbatch import out_of_memory_explained
from halfstep.train.run.observer import Observer, Observers
from halfstep.train.run.training import Training

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from rich.console import Console

    from halfstep.bench.marks import Seconds
    from halfstep.bench.outcome import Outcome
    from halfstep.engine import StepResult
    from halfstep.train.build.setup import Setup
    from halfstep.train.config import Config


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
    """Measure the parts of a config's training step under some recipes.

    Args:
        config: The name of a shipped config, or the path of a YAML file.
        options: Overrides of the config.
        device_name: The device; None for the config's device.
        recipes: Names of recipes, separated by commas; None for the config's recipe.
        steps: Optimizer steps to measure in each turn.
        warmup: Steps before them that are not measured.
        rounds: The number of measurements of each recipe.
        console: Prints the progress.

    Raises:
        UserError: If an argument is invalid.
    """
    configs = _configs(config, options, device_name, recipes)
    first = next(iter(configs.values()))
    device = pick_device(first.device)
    rehearsed: dict[str, list[str]] = {}

    def measure(name: str) -> list[Seconds]:
        setup = set_up(_long_enough(configs[name], warmup + steps), device)
        rehearsed[name] = setup.engine.resolution.those("rehearsed")
        with setup.engine, on_threads(configs[name].threads):
            taken = take_apart(setup, configs[name], steps=steps, warmup=warmup)
        # Ends its workers, which would take time from the next turn.
        del setup
        gc.collect()
        return taken

    parts = take_turns(
        list(configs),
        rounds,
        measure,
        label=str,
        write=lambda figures: f"{milliseconds(median(map(total, figures)))} ms a step",
        console=console,
    )
    dissection = Dissection(dict(zip(configs, parts, strict=True)), rehearsed, warmup)
    return dissection.outcome(subject("step", first.name, options, device))


class Dissector(Observer):
    """Marks the parts of each step of the trainer's loop.

    Args:
        device: The device of the steps.
    """

    def __init__(self, device: torch.device) -> None:
        self.marks = Marks(device)
        self._stack = ExitStack()

    def begin(self, training: Training) -> None:
        """Start to mark the parts inside the engine's calls."""
        self._stack.enter_context(marked(training.setup.engine, self.marks))

    def end(self, error: BaseException | None) -> None:
        """Stop marking these parts."""
        self._stack.close()

    def batch_loaded(self) -> None:
        """Mark the end of the wait for a batch."""
        self.marks.mark("data_wait")

    def batch_prepared(self) -> None:
        """Mark the end of copying the batch to the device and of transforming it there."""
        self.marks.mark("prepare")

    def stepped(self, step: int, result: StepResult | None) -> None:
        """Mark the end of a step."""
        self.marks.mark("rest")
        self.marks.end_step()


def take_apart(setup: Setup, config: Config, *, steps: int, warmup: int) -> list[Seconds]:
    """Train, and return the time of each part of each step, without the warm-up steps.

    The trainer's own loop runs, without log lines, validation and checkpoints.

    Args:
        setup: The setup to train.
        config: The config of `setup`.
        steps: Optimizer steps to measure.
        warmup: Steps before them that are not measured.
    """
    dissector = Dissector(setup.device)
    training = Training(_undisturbed(config), replace(setup, steps=warmup + steps), run=Path())
    observers = Observers([*steps_and_losses(training), dissector], setup.processes)
    loop = assemble(training, observers)
    with out_of_memory_explained(config), observers.watching(training):
        training.stopwatch.start()
        while not training.all_steps_done:
            train_epoch(loop)
            training.progress.epochs, training.progress.batch = training.progress.epoch, 0
    return dissector.marks.seconds()[warmup:]


def _undisturbed(config: Config) -> Config:
    """Return the config without logs and checkpoints between steps, and without rollbacks."""
    return config.model_copy(
        update={
            "log_every": sys.maxsize,
            "checkpoints": CheckpointsConfig(),
            "on_nonfinite": "stop" if config.on_nonfinite == "stop" else "skip",
        }
    )


def _configs(
    config: str, options: Sequence[str], device: str | None, recipes: str | None
) -> dict[str, Config]:
    own = load(config, options, {"device": device})
    if recipes is None:
        return {own.build_recipe().name: own}
    if not isinstance(parse_options(options).get("recipe", {}), dict):
        raise UserError("--options sets 'recipe', which bench sets for each row; write --recipes")
    spelled_out = own.build_recipe() if isinstance(own.recipe, dict) else None
    loaded = {}
    for name in parse_recipes(recipes, spelled_out):
        mine = None if spelled_out is not None and name == spelled_out.name else name
        loaded[name] = load(config, options, {"device": device, "recipe": mine})
    return loaded


def _long_enough(config: Config, steps: int) -> Config:
    """Return the config with enough epochs that its schedule does not end within `steps` steps."""
    return config.model_copy(update={"epochs": max(config.epochs, steps), "max_steps": None})
