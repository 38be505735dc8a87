"""Probes a run at the end of each epoch: the effect of its last step, and the weights after it.

A run with probes ends with the same weights as a run without.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from dataclasses import asdict
from statistics import mean
from typing import TYPE_CHECKING, Any

from halfstep import step_observer
from halfstep.kernels.accelerators import forked_rng
from halfstep.train.build import models
from halfstep.train.build.classification import Classification
from halfstep.train.observers.probe import Probe
from halfstep.train.run.microbatch import is_out_of_memory
from halfstep.train.run.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    import torch

    from halfstep.engine import StepResult
    from halfstep.train.build.setup import Setup
    from halfstep.train.config import Config
    from halfstep.train.store.checkpoint import State


class ProbeWarning(UserWarning):
    """There are no more probes, because memory does not suffice."""


class Probes(Observer):
    """Measures a run with a `Probe` at the end of each epoch.

    Args:
        config: The config of the run.
        setup: The objects of the run.
        paused: Returns a context that excludes a probe's memory from the peak memory.
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
        """Copy the weights to the CPU before the last step of an epoch."""
        self._unchanged = self._before = None
        if not last or self._too_large:
            return
        try:
            self._before = [param.detach().to("cpu", copy=True) for param in self._held()]
        except (RuntimeError, MemoryError) as error:
            self._give_up(error)

    def stepped(self, step: int, result: StepResult | None) -> None:
        """Compute the share of weights that the step did not change, unless it was skipped."""
        if self._before is None or result is None or not result.stepped:
            return
        pairs = zip(self._before, self._held(), strict=True)
        same = sum(int((before == now.detach().cpu()).sum()) for before, now in pairs)
        self._unchanged = same / sum(param.numel() for param in self._before)
        self._before = None

    def epoch_done(self) -> dict[str, float]:
        """Probe the weights at the end of an epoch; return the figures.

        A probe needs more memory than training, because it computes fp32 gradients. If memory runs
        out, the run continues without further probes.
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
        # None if the step was skipped, or if the run was resumed after the epoch's last step.
        if self._unchanged is not None:
            figures["unchanged_share"] = self._unchanged
            self._unchanged_shares.append(self._unchanged)
        self._newest = figures
        return figures

    def summary(self) -> dict[str, Any]:
        """Return the results, and the mean share of weights that a step leaves unchanged."""
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
        message = "there is not enough memory for probes; the run continues without them"
        warnings.warn(message, ProbeWarning, stacklevel=3)

    def _held(self) -> list[torch.Tensor]:
        """Return the weights that the optimizer updates: master weights if the recipe has them."""
        groups = self._setup.engine.optimizer.param_groups
        return [param for group in groups for param in group["params"]]

    def _build(self) -> Probe:
        """Build a probe with a new fp32 twin, which is freed afterwards to save memory."""
        config, setup, task = self._config, self._setup, self._setup.task
        assert isinstance(task, Classification)  # `Config` has no other
        if self._batch is None:
            images, labels = next(task.data.train.epoch(1))
            self._batch = task.data.prepare(
                images, labels, device=setup.device, train=True, epoch=1, number=0
            )
        with forked_rng(setup.device), step_observer.active.aside():
            twin = models.build(
                config.model,
                classes=len(task.data.classes),
                image_shape=task.data.image_shape,
                initial_weights=False,
            ).to(setup.device)
        return Probe(setup.engine, twin, *self._batch, task.loss)
