"""When a run is looked into: the last step of each epoch, and the weights after it.

A run with probes ends in the same weights as one without.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from dataclasses import asdict
from statistics import mean
from typing import TYPE_CHECKING, Any

import torch

from halfstep.train.build import models
from halfstep.train.observers.probe import Probe
from halfstep.train.run.microbatch import is_out_of_memory
from halfstep.train.run.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from halfstep.engine import StepResult
    from halfstep.train.build.setup import Setup
    from halfstep.train.config import Config
    from halfstep.train.store.checkpoint import State


class ProbeWarning(UserWarning):
    """A run cannot be looked into any more."""


class Probes(Observer):
    """Looks into a run.

    Args:
        paused: Leaves out of the peak of memory what a look takes.
    """

    name = "probes"

    def __init__(
        self,
        config: Config,
        setup: Setup,
        paused: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._config = config
        self._paused = paused
        self._unchanged_shares: list[float] = []
        self._setup = setup
        self._batch: tuple[torch.Tensor, torch.Tensor] | None = None
        self._before: list[torch.Tensor] | None = None
        self._unchanged: float | None = None
        self._too_large = False
        self._formats: dict[str, Any] | None = None
        self._held_bytes: dict[str, int | None] | None = None
        self._newest: dict[str, float] = {}

    def before_step(self, *, last: bool) -> None:
        """Remember the weights before the last step of an epoch, outside of the GPU's memory."""
        self._unchanged = self._before = None
        if not last or self._too_large:
            return
        try:
            self._before = [param.detach().to("cpu", copy=True) for param in self._held()]
        except (RuntimeError, MemoryError) as error:
            self._give_up(error)

    def stepped(self, step: int, result: StepResult | None) -> None:
        """See which of them the step has changed, if it was made."""
        if self._before is None or result is None or not result.stepped:
            return
        pairs = zip(self._before, self._held(), strict=True)
        same = sum(int((before == now.detach().cpu()).sum()) for before, now in pairs)
        self._unchanged = same / sum(param.numel() for param in self._before)
        self._before = None

    def epoch_done(self) -> dict[str, float]:
        """Look at the weights that an epoch ended with; return the figures.

        A look needs the gradients of fp32, so where memory just suffices for training it does not
        for the look: there is none from then on, and the run continues.
        """
        if self._too_large:
            return {}
        try:
            with self._paused():
                figures = self._look()
        except (RuntimeError, MemoryError) as error:
            self._give_up(error)
            self._setup.engine.zero_grad()
            return {}
        # A run that was picked up behind the last step of its epoch has not seen that step.
        if self._unchanged is not None:
            figures["unchanged_share"] = self._unchanged
            self._unchanged_shares.append(self._unchanged)
        self._newest = figures
        return figures

    def summary(self) -> dict[str, Any]:
        """Return what was found, and the share that a step leaves unchanged, on average."""
        shares = self._unchanged_shares
        return {
            "formats": self._formats,
            "held_bytes": self._held_bytes,
            "newest": self._newest,
            "unchanged_share": mean(shares) if shares else None,
        }

    def state_dict(self) -> State:
        return {"unchanged_shares": list(self._unchanged_shares)}

    def load_state_dict(self, state: State) -> None:
        self._unchanged_shares = list(state["unchanged_shares"])

    def _look(self) -> dict[str, float]:
        probe = self._build()
        if self._formats is None:
            self._formats = probe.formats(self._setup.engine.recipe.product_format)
            self._held_bytes = asdict(probe.held())
        return probe.gradients()

    def _give_up(self, error: RuntimeError | MemoryError) -> None:
        if not is_out_of_memory(error):
            raise error
        self._too_large = True
        said = "there is not enough memory for probes; the run continues without them"
        warnings.warn(said, ProbeWarning, stacklevel=3)

    def _held(self) -> list[torch.Tensor]:
        """Return the weights that the optimizer updates, masters where there are any."""
        groups = self._setup.engine.optimizer.param_groups
        return [param for group in groups for param in group["params"]]

    def _build(self) -> Probe:
        """Make a probe whose twin lives for one look, so that training has its memory back."""
        config, setup = self._config, self._setup
        if self._batch is None:
            images, labels = next(setup.data.train.epoch(1))
            self._batch = setup.data.prepare(
                images, labels, device=setup.device, train=True, epoch=1, number=0
            )
        with torch.random.fork_rng([setup.device] if setup.device.type == "cuda" else []):
            twin = models.build(
                config.model,
                classes=len(setup.data.classes),
                image_shape=setup.data.image_shape,
                initial_weights=False,
            )
        return Probe(setup.engine, twin.to(setup.device), *self._batch, setup.loss)
