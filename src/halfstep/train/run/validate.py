"""Validation: figures of the engine's model, under the recipe that it is trained with."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from halfstep.train.build.setup import Setup
    from halfstep.train.task.figures import Figures


def validate(setup: Setup) -> Figures:
    """Validate the model on the validation split; see `Task.validate`."""
    return setup.task.validate(setup.engine, setup.compiled_for)
