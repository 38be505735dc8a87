"""What happens when windows close: unscale, measure, clip, step, and put things in order after.

Every optimizer is measured before any of them steps, so that a host that must know what was found
waits for the device once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from halfstep.engine.measure import Measured, measure
from halfstep.engine.parallel.shards import is_sharded
from halfstep.engine.result import OptimizerStep, StepResult
from halfstep.engine.settle import HostCopy, Outcome, Settlement
from halfstep.engine.slot import Slot, start_momentum

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfstep.engine.average import WeightAverage
    from halfstep.engine.gradients import Clipping
    from halfstep.engine.parallel.ddp import Replicas
    from halfstep.engine.parallel.ranks import Ranks
    from halfstep.engine.scales import LossScales
    from halfstep.engine.statistics import RunningStatistics
    from halfstep.engine.weights import Weight
    from halfstep.techniques import Technique


@dataclass(frozen=True, slots=True)
class Update:
    """Closes windows under a recipe.

    Attributes:
        slots: All optimizers of the engine.
        techniques: What the recipe is carried out by.
        scales: Its loss scales.
        clipping: How gradients are clipped.
        statistics: Guards of the models' running statistics, with the parameters of each model.
        averages: Weight averages, one for each slot, or none.
        settlement: Where what follows from a step is left.
        replicas: The models that every process holds whole.
        ranks: The processes that train together.
        names: Names of the parameters, for messages.
        full_precision: Gives the most precise value of a parameter.
    """

    slots: list[Slot]
    techniques: Sequence[Technique]
    scales: LossScales
    clipping: Clipping
    statistics: Sequence[tuple[RunningStatistics, frozenset[torch.Tensor]]]
    averages: Sequence[WeightAverage]
    settlement: Settlement
    replicas: Replicas
    ranks: Ranks
    names: dict[torch.Tensor, str]
    full_precision: Callable[[torch.Tensor], torch.Tensor]

    def close(
        self,
        closing: Sequence[tuple[Slot, Weight]],
        *,
        step: int,
        closure: Callable[[], float] | None = None,
    ) -> StepResult:
        """Close windows.

        Args:
            closing: Whose windows close, each with what its gradients still lack.
            step: Number of the step, from 1.
            closure: Passed to the optimizer, which then makes its own gradients.

        Returns:
            What every optimizer of the engine did.
        """
        try:
            for slot, _ in closing:
                slot.hide_true_grads()
            self.replicas.average([slot for slot, _ in closing])
            measured = measure(
                closing, scales=self.scales, ranks=self.ranks, widens=bool(self.clipping)
            )
            if self.clipping:
                for each in measured:
                    if each.grad_norm is not None:
                        self.clipping.apply(each.params, each.grad_norm, self.full_precision)
            skips = self._skips_on_host(measured)
            moving = [each for each in measured if each.params or closure is not None]
            for each in moving:
                average = self.averages[self.slots.index(each.slot)] if self.averages else None
                if average:
                    average.cover(each.slot.params)
                self._take_step(each, closure, skip=skips.get(each.slot, False))
                if average:
                    average.update(each.found_inf)
            self._put_back_statistics(measured)
        finally:
            # After an error too: what is left is neither scaled nor whole.
            for slot, _ in closing:
                slot.zero_grad()
            self.replicas.forget([slot for slot, _ in closing])
        self._leave_outcome(moving, step)
        done = {each.slot: each for each in measured}
        return StepResult(
            tuple(_report(done.get(slot), closure is not None) for slot in self.slots)
        )

    def _skips_on_host(self, measured: Sequence[Measured]) -> dict[Slot, bool]:
        """Ask the device about those optimizers that cannot leave a step out by themselves."""
        asking = [m for m in measured if m.found_inf is not None and not self._skips_itself(m.slot)]
        if not asking:
            return {}
        found = torch.stack([m.found_inf for m in asking if m.found_inf is not None]).tolist()
        return {m.slot: bool(value) for m, value in zip(asking, found, strict=True)}

    def _skips_itself(self, slot: Slot) -> bool:
        if not getattr(slot.optimizer, "_step_supports_amp_scaling", False):
            return False
        if not all(technique.skips_on_device for technique in self.techniques):
            return False
        if any(is_sharded(param) for param in slot.params):
            return False  # a fused kernel does not take found_inf beside shared parameters
        return not slot.fused_momentum or start_momentum(slot.optimizer)

    def _take_step(
        self, measured: Measured, closure: Callable[[], float] | None, *, skip: bool
    ) -> None:
        if skip:
            return
        optimizer = measured.slot.optimizer
        for technique in self.techniques:
            technique.before_step(optimizer, measured.params)

        def take() -> None:
            if closure is None:
                optimizer.step()
            else:
                optimizer.step(closure)

        for technique in self.techniques:
            take = _around(technique, optimizer, take)
        # The contract of torch.amp.GradScaler with fused optimizers: they read these attributes.
        if measured.found_inf is not None and self._skips_itself(measured.slot):
            vars(optimizer).update(found_inf=measured.found_inf, grad_scale=None)
        measured.slot.guard.open = True
        try:
            take()
        finally:
            measured.slot.guard.open = False
            vars(optimizer).pop("found_inf", None)
            vars(optimizer).pop("grad_scale", None)
        for technique in self.techniques:
            technique.after_step(optimizer)

    def _put_back_statistics(self, measured: Sequence[Measured]) -> None:
        looked = [m for m in measured if m.found_inf is not None]
        closing = {m.slot for m in measured}
        still_open = [slot for slot in self.slots if slot.backwards and slot not in closing]
        for statistics, params in self.statistics:
            own = [m for m in looked if not params.isdisjoint(m.slot.params)]
            if not own and all(params.isdisjoint(slot.params) for slot in still_open):
                # Nobody trains the model now: it was used in the turn of those that close.
                own = looked
            if own:
                found = [m.found_inf for m in own if m.found_inf is not None]
                statistics.settle(torch.stack(found).amax())

    def _leave_outcome(self, measured: Sequence[Measured], step: int) -> None:
        if not measured:
            return
        waiting = [slot for slot in self.slots if all(m.slot is not slot for m in measured)]
        updated = self.scales.update(waiting)
        values = [m.found_inf for m in measured if m.found_inf is not None]
        found = list(range(len(values))) if values else [None] * len(measured)
        places = []
        for loss_id, scaler, seen in updated:
            places.append((loss_id, scaler, len(values), len(values) + 1))
            values += [seen, scaler.scale]
        self.settlement.add(
            Outcome(
                step=step,
                optimizers=[m.slot.optimizer for m in measured],
                found=found,
                scalers=places,
                copied=HostCopy(torch.stack(values)) if values else None,
                names=lambda: self._not_finite(measured),
            )
        )

    def _not_finite(self, measured: Sequence[Measured]) -> list[str]:
        """Name the parameters whose gradient was not finite."""
        names = []
        for each in measured:
            if each.each_norm is not None:
                finite = each.each_norm.isfinite().tolist()
                names += [
                    self.names.get(param, f"a parameter of shape {tuple(param.shape)}")
                    for param, is_finite in zip(each.params, finite, strict=True)
                    if not is_finite
                ]
        return names


def _around(
    technique: Technique, optimizer: torch.optim.Optimizer, take: Callable[[], None]
) -> Callable[[], None]:
    return lambda: technique.step(optimizer, take)


def _report(measured: Measured | None, by_closure: bool) -> OptimizerStep:
    if measured is None:
        return OptimizerStep(closed=False)
    return OptimizerStep(
        closed=True,
        has_gradients=bool(measured.params) or by_closure,
        _found_inf=measured.found_inf,
        _grad_norm=measured.grad_norm,
        _loss_scale=measured.loss_scale,
    )
