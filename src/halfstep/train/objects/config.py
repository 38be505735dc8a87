"""The settings of a run of a program's own objects, and what is recorded of these objects."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from halfstep.train.config.loop import StoppingConfig  # pydantic reads it at run time
from halfstep.train.config.run import RunConfig

Mode = Literal["min", "max"]


class FitConfig(RunConfig):
    """The settings of a run of a program's own objects."""

    early_stopping: StoppingConfig | None = None
    """When to stop before the last epoch; null never stops early."""
    objects: dict[str, str]
    """What the objects are, in words: a resume is refused if they are others."""

    @field_validator("probes", "auto_microbatch")
    @classmethod
    def _needs_a_config(cls, given: bool) -> bool:
        if given:
            raise ValueError("needs a model that a config names; leave it out")
        return given

    def new_length_changes(self, shorter: int) -> str | None:
        """Return why learning rates would change if the number of epochs did, or None."""
        del shorter
        scheduler = self.objects.get("scheduler")
        return scheduler and f"its scheduler, {scheduler}, may depend on the number of epochs"
