"""The engine: runs one training step under a recipe, and alone calls backward and step.

What a loop calls is here; what happens when a window closes is in `update.py`, and how a number
format does its part is in the techniques.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Self, TypeVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from halfstep.engine.average import EMA, SWA, WeightAverage, averaged_state_dict, checked_rule
from halfstep.engine.evaluate import eval_mode
from halfstep.engine.grad import true_gradients
from halfstep.engine.gradients import Clipping
from halfstep.engine.guard import release_all
from halfstep.engine.misuse import (
    refuse_closed,
    refuse_closure,
    refuse_misfits,
    refuse_unreduced,
    refuse_wrapped,
    warn_backward_in_autocast,
    warn_lost,
    warn_new_recipe,
    warn_touched,
)
from halfstep.engine.scales import LossScales
from halfstep.engine.settle import Settlement
from halfstep.engine.slot import Slot
from halfstep.engine.state import holds_window, load_optimizer, load_parts, save_parts
from halfstep.engine.statistics import RunningStatistics
from halfstep.engine.update import Update
from halfstep.engine.weights import MicroBatchWeights
from halfstep.recipe import Recipe
from halfstep.recipe import recipe as find_recipe
from halfstep.techniques import LossScaleCollapse, LossScaler, techniques_for

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

    from torch.optim.lr_scheduler import LRScheduler

    from halfstep.engine.result import StepResult

_Item = TypeVar("_Item")


class Engine:
    """Trains models under a recipe, one step at a time, in a loop of your own.

    ```python
    engine = Engine(model, optimizer, recipe="fp16", accumulate=4, clip_norm=1.0)
    for images, labels in engine.batches(loader):
        with engine.autocast():
            loss = criterion(engine.model(images), labels)
        engine.backward(loss)
        result = engine.step()
    ```

    Args:
        model: One model or several, on their devices.
        optimizer: One optimizer or several, over the parameters of the models.
        recipe: A name, names joined by "+", a mapping of fields, or a `Recipe`.
        accumulate: Micro-steps to an optimizer step; losses are averaged over them.
        clip_norm: Largest 2-norm of the true gradients of each optimizer.
        clip_value: Largest absolute value of an element of the true gradients.
        clip_adaptive: Largest ratio of gradient to weight norm, unit by unit.
        scheduler: One scheduler or several, each stepped once for each real step of its optimizer.
        average: `EMA(...)` or `SWA(...)` of the weights, for `evaluating`.
        seed: Seed of what a recipe draws at random (stochastic rounding).

    Attributes:
        models, optimizers: As given, always lists.
        recipe: The recipe that is carried out.
        steps: Optimizer steps so far, skipped ones included.

    Raises:
        ValueError: If the recipe is unknown or contradicts itself, if models are wrapped already
            and the recipe changes parameters, or if a parameter has two owners.
        TypeError: If an optimizer or scheduler cannot work under the recipe.
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        recipe: str | Recipe | Mapping[str, Any] = "fp32",
        accumulate: int = 1,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        clip_adaptive: float | None = None,
        scheduler: LRScheduler | Sequence[LRScheduler] | None = None,
        average: EMA | SWA | None = None,
        seed: int = 0,
    ) -> None:
        self.models = [model] if isinstance(model, nn.Module) else list(model)
        self.optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        self.recipe = find_recipe(recipe)
        if not isinstance(accumulate, int) or accumulate < 1:
            raise ValueError(f"accumulate is {accumulate!r}; allowed: 1 or more micro-steps")
        self._weights = MicroBatchWeights(accumulate)
        self.steps = 0
        self._last_batch = False
        self._closed = False
        self._techniques = techniques_for(self.recipe, seed=seed)
        clipping = Clipping(clip_norm, clip_value, clip_adaptive)
        rule = checked_rule(average)
        if scheduler is None:
            scheduler = ()
        schedulers = list(scheduler) if isinstance(scheduler, Sequence) else [scheduler]
        self._settlement = Settlement(schedulers)
        self._statistics: list[tuple[RunningStatistics, frozenset[torch.Tensor]]] = []
        self._slots: list[Slot] = []
        refuse_misfits(self.models, self.optimizers, schedulers, self.recipe)
        self._device = next(param.device for each in self.models for param in each.parameters())
        if any(technique.reshapes_params for technique in self._techniques):
            refuse_wrapped(self.models, self.recipe.name)
        try:
            for each in self.optimizers:
                self._slots.append(Slot(each, self._techniques))
            for technique in self._techniques:
                technique.prepare(self.models, self.optimizers)
            for each in self.optimizers:
                if self.recipe.params and each.state:
                    load_optimizer(each, self._techniques, each.state_dict())
        except BaseException:
            self._give_back()
            raise
        # An engine that is dropped without close() lets go of its optimizers too.
        weakref.finalize(self, release_all, [slot.guard for slot in self._slots])
        self._scales = LossScales(self.recipe.loss_scale, self._device)
        self._averages = (
            [WeightAverage(rule, slot.params, self._full_precision) for slot in self._slots]
            if rule
            else []
        )
        if self._scales:
            self._statistics += [
                (RunningStatistics(each), frozenset(each.parameters())) for each in self.models
            ]
        self._update = Update(
            slots=self._slots,
            techniques=self._techniques,
            scales=self._scales,
            clipping=clipping,
            statistics=self._statistics,
            averages=self._averages,
            settlement=self._settlement,
            names=_names(self.models),
            full_precision=self._full_precision,
        )

    @property
    def model(self) -> nn.Module:
        """The model, when there is one."""
        return _only(self.models, "model")

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer, when there is one."""
        return _only(self.optimizers, "optimizer")

    @property
    def accumulate(self) -> int:
        """Micro-steps to an optimizer step."""
        return self._weights.accumulate

    @property
    def loss_scale(self) -> float:
        """The loss scale now; 1 without one. Reading it waits for the device."""
        shared = self._scales.shared
        return 1.0 if shared is None else float(shared.scale)

    @property
    def skipped(self) -> int:
        """Optimizer steps left out so far, as a gradient was not finite."""
        self.flush()
        return self._settlement.skipped

    @property
    def loss_scales(self) -> Mapping[Hashable, LossScaler]:
        """The shared loss scale under None, and those of losses with a `loss_id`; with history."""
        return self._scales.scalers

    def batches(self, loader: Iterable[_Item]) -> Iterator[_Item]:
        """Iterate over `loader`, one batch ahead, so that the last window closes when it ends."""
        iterator = iter(loader)
        ahead = list(islice(iterator, 1))
        try:
            while ahead:
                current = ahead.pop()
                ahead.extend(islice(iterator, 1))
                self._last_batch = not ahead
                yield current
        finally:
            self._last_batch = False

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Enter the forward context of the recipe, whatever it is: forward passes and losses."""
        self._set_gradient_sync()
        with ExitStack() as stack:
            for statistics, _ in self._statistics:
                stack.enter_context(statistics.step_going_on())
            for technique in self._techniques:
                stack.enter_context(technique.forward(self._device))
            yield

    def backward(
        self,
        loss: torch.Tensor,
        *,
        optimizers: Sequence[Optimizer] | None = None,
        loss_id: Hashable = None,
        retain_graph: bool = False,
        samples: int | None = None,
    ) -> None:
        """Accumulate the gradients of a loss.

        Args:
            loss: Scalar, the mean over the micro-batch.
            optimizers: Limits whose parameters the gradients reach; all of them by default.
            loss_id: Gives the loss a scale of its own, under this name.
            retain_graph: Keep the graph for another loss.
            samples: Size of the micro-batch, to weight uneven ones by; give it always or never.

        Raises:
            RuntimeError: If `samples` is given for some micro-batches only, or the engine is
                closed. Whatever a backward raises, the window that it would have added to is
                dropped.
        """
        slots = self._select(optimizers)
        refuse_closed(closed=self._closed)
        warn_backward_in_autocast(loss.device)
        if any(slot.lost_gradients() for slot in slots):
            warn_lost()
        loss = self._weights.apply(loss, samples, slots)
        inputs = None if optimizers is None else _with_gradients(slots)
        for slot in slots:
            for technique in self._techniques:
                technique.before_backward(slot.params, again=slot.backwards > 0)
        try:
            self._scales.backward(
                loss, slots, loss_id=loss_id, inputs=inputs, retain_graph=retain_graph
            )
        except BaseException:
            # Out of memory, say: some gradients are there and some are not.
            self.zero_grad(optimizers=optimizers)
            raise
        for slot in slots:
            slot.after_backward(scaled=bool(self._scales))

    def grad(
        self,
        outputs: torch.Tensor,
        inputs: torch.Tensor | Sequence[torch.Tensor],
        *,
        create_graph: bool = False,
        retain_graph: bool | None = None,
        allow_unused: bool = False,
    ) -> tuple[torch.Tensor, ...]:
        """Return true-valued gradients, differentiable if asked, as a gradient penalty needs them.

        Args:
            outputs: Tensor of any shape, summed.
            inputs: What to differentiate by.
            create_graph: Whether the gradients can be differentiated again.
            retain_graph: As in `torch.autograd.grad`.
            allow_unused: Whether an input may have no part in `outputs`; its gradient is zero then.

        Returns:
            One gradient for each input, fp32 at least, not multiplied by any scale.
        """
        scaler = self._scales.shared
        return true_gradients(
            outputs,
            [inputs] if isinstance(inputs, torch.Tensor) else list(inputs),
            scaler.scale if scaler else None,
            create_graph=create_graph,
            retain_graph=retain_graph,
            allow_unused=allow_unused,
        )

    def step(
        self,
        *,
        optimizers: Sequence[Optimizer] | None = None,
        close: bool = False,
        closure: Callable[[], float] | None = None,
    ) -> StepResult:
        """End a micro-step; where it ends a window, unscale, clip, step, update and zero.

        Args:
            optimizers: Whose turn it is; by default all that a backward reached.
            close: Close the window though it is not full.
            closure: For optimizers that call the loss again (LBFGS): zeroes the gradients, calls
                `engine.backward` and returns the loss.

        Raises:
            RuntimeError: If no backward came since the last step.
            LossScaleCollapse: If the loss scale could not help in the step before; the gradients
                are dropped.
        """
        refuse_closed(closed=self._closed)
        try:
            self.flush()
        except LossScaleCollapse:
            self.zero_grad()
            raise
        slots = self._select(optimizers)
        if closure is not None:
            refuse_closure(slots, self.accumulate, self._update.clipping, self.recipe)
        elif not any(slot.pending for slot in slots):
            raise RuntimeError(
                "engine.step() was called without an engine.backward() since the last step; call "
                "engine.backward(loss) once or more for each step"
            )
        pending = [slot for slot in slots if slot.pending or closure is not None]
        if self._scales and any(slot.touched() for slot in pending):
            warn_touched()
        for slot in pending:
            slot.micro_steps += 1
            slot.pending = False
        closing = [
            s for s in pending if close or self._last_batch or s.micro_steps >= self.accumulate
        ]
        if closing:
            refuse_unreduced(self.models)
            self.steps += 1
        weighted = [(slot, self._weights.missing(slot)) for slot in closing]
        return self._update.close(weighted, step=self.steps, closure=closure)

    def zero_grad(self, *, optimizers: Sequence[Optimizer] | None = None) -> None:
        """Drop gradients and what their window has seen."""
        for slot in self._select(optimizers):
            slot.zero_grad()
            for statistics, params in self._statistics:
                if not params.isdisjoint(slot.params):
                    statistics.forget()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Validate as the recipe says: eval mode, no gradients, averaged weights if kept."""
        with ExitStack() as stack:
            for average in self._averages:
                stack.enter_context(average.applied())
            stack.enter_context(eval_mode(self.models))
            for technique in self._techniques:
                stack.enter_context(technique.forward(self._device))
            yield

    def averaged_state_dict(self, model: nn.Module | None = None) -> dict[str, torch.Tensor]:
        """Return the fp32 state of `model` with the averaged weights in place of the current ones.

        Raises:
            ValueError: If the engine keeps no average.
        """
        if not self._averages:
            raise ValueError("this engine keeps no average; write Engine(..., average=EMA(0.999))")
        return averaged_state_dict(model or self.model, self._averages)

    def flush(self) -> None:
        """Settle what follows from the last step: schedulers, loss-scale history.

        Raises:
            LossScaleCollapse: If the loss scale cannot help any more.
        """
        self._settlement.settle()

    def state_dict(self) -> dict[str, Any]:
        """Return everything a resume needs beside the models: plain containers and tensors.

        Optimizers, loss scales, schedulers, counters, averages, and a half-filled window.
        """
        self.flush()
        return {
            "recipe": self.recipe.name,
            "settings": self.recipe.settings(),
            "accumulate": self.accumulate,
            "steps": self.steps,
            "samples_per_micro_step": self._weights.samples_per_micro_step,
            **save_parts(self._update),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned; load the models' own states as usual.

        Raises:
            ValueError: If the state is of another number of optimizers, schedulers or averages, or
                holds a window half-filled under another `accumulate`.
        """
        self.flush()
        if holds_window(state) and state["accumulate"] != self.accumulate:
            raise ValueError(
                f"the state holds a window half-filled under accumulate={state['accumulate']}, and "
                f"this engine has accumulate={self.accumulate}; resume with the same, or save "
                "where a window has closed"
            )
        same_recipe = state["settings"] == self.recipe.settings()
        load_parts(self._update, state, numerics=same_recipe)
        self.steps = state["steps"]
        self._weights.samples_per_micro_step = state["samples_per_micro_step"]
        if not same_recipe:
            self.zero_grad()
            warn_new_recipe(state["recipe"], self.recipe.name, lost_window=holds_window(state))

    def close(self) -> None:
        """Settle the last step and give back every setting, hook and format.

        Models come back in the format that they were given in, with the most precise weights that
        there are, and the optimizers over their parameters. A closed engine trains no more.

        Raises:
            LossScaleCollapse: If the loss scale could not help in the last step; all is given back.
        """
        try:
            self.flush()
        finally:
            self._give_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._give_back()

    def _give_back(self) -> None:
        self._closed = True
        release_all([slot.guard for slot in self._slots])
        for statistics, _ in self._statistics:
            statistics.close()
        for technique in reversed(self._techniques):
            technique.close()

    def _select(self, optimizers: Sequence[Optimizer] | None) -> list[Slot]:
        if optimizers is None:
            return self._slots
        chosen = [slot for slot in self._slots if any(slot.optimizer is o for o in optimizers)]
        if len(chosen) != len(optimizers):
            raise ValueError(
                "optimizers=[...] names an optimizer that this engine does not own; allowed: the "
                "entries of engine.optimizers"
            )
        return chosen

    def _set_gradient_sync(self) -> None:
        """Let DDP reduce gradients only where a window closes."""
        closing = self._last_batch or any(
            slot.micro_steps + 1 >= self.accumulate for slot in self._slots
        )
        for model in self.models:
            if isinstance(model, DistributedDataParallel):
                model.require_backward_grad_sync = closing

    def _full_precision(self, param: torch.Tensor) -> torch.Tensor:
        for technique in self._techniques:
            param = technique.full_precision(param)
        return param


def _only(given: Sequence[_Item], what: str) -> _Item:
    if len(given) != 1:
        raise ValueError(f"this engine has {len(given)} {what}s; write engine.{what}s[i]")
    return given[0]


def _with_gradients(slots: Sequence[Slot]) -> list[torch.Tensor]:
    return [param for slot in slots for param in slot.params if param.requires_grad]


def _names(models: Sequence[nn.Module]) -> dict[torch.Tensor, str]:
    return {
        param: f"models[{index}].{name}" if len(models) > 1 else name
        for index, model in enumerate(models)
        for name, param in model.named_parameters()
    }
