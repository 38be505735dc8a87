"""The engine: runs one training step under a recipe, and alone calls backward and step.

What happens when windows close is in `step.py`, a number format's part of it in the techniques.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from halfstep import step_observer
from halfstep.engine import misuse
from halfstep.engine.assemble import assemble
from halfstep.engine.average import EMA, SWA, averaged_state_dict
from halfstep.engine.backward import accumulate_gradients
from halfstep.engine.batches import Batches, Loops
from halfstep.engine.clipping import Clipping
from halfstep.engine.closure import refuse_closure
from halfstep.engine.evaluate import eval_mode
from halfstep.engine.forward import ForwardPass
from halfstep.engine.grad import true_gradients
from halfstep.engine.parallel.placement import Parallel
from halfstep.engine.plain import OPEN_WINDOW, PlainSteps
from halfstep.engine.selection import listed, only, selected
from halfstep.engine.state import load_assembly, save_assembly
from halfstep.engine.step import close_windows, refuse_untimely
from halfstep.engine.weights import MicroBatchWeights
from halfstep.feed.prefetching import prefetch
from halfstep.recipe import Recipe
from halfstep.recipe import recipe as find_recipe
from halfstep.techniques import LossScaleCollapse, LossScaler

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from torch.optim.lr_scheduler import LRScheduler

    from halfstep.engine.result import StepResult
    from halfstep.engine.window import Window
    from halfstep.techniques import Technique

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
        parallel: "ddp" puts each model on all processes in `DistributedDataParallel`, once the
            recipe has changed it; "dp" on all GPUs of this process in `DataParallel`, which is
            slower. Models from `halfstep.shard` need nothing.
        ddp: Arguments of `DistributedDataParallel`.
        dp: Arguments of `DataParallel`, such as {"device_ids": [0, 1]}.
        sync_batchnorm: Whether BatchNorm sees the batches of all processes; with "ddp".

    Attributes:
        models, optimizers: Always lists; models in the wrapper that is to be called.
        bare_models: The models without it, whose state is saved.
        recipe: The recipe that is carried out.
        resolution: What the models' device really does under it: native or rehearsed.
        steps: Optimizer steps so far, skipped ones included.

    Raises:
        ValueError: If the recipe is unknown or contradicts itself, if models are wrapped already
            and the recipe changes parameters, or if a parameter has two owners.
        TypeError: If an optimizer or scheduler cannot work under the recipe.
    """

    _closed = True  # as long as there is nothing to give back

    def __init__(  # noqa: PLR0913  (all but two have a default and are given by name)
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
        parallel: Literal["ddp", "dp"] | None = None,
        ddp: Mapping[str, Any] | None = None,
        dp: Mapping[str, Any] | None = None,
        sync_batchnorm: bool = False,
    ) -> None:
        models = listed(model, nn.Module, "model")
        self.optimizers = listed(optimizer, Optimizer, "optimizer")
        self.recipe = find_recipe(recipe)
        self._weights = MicroBatchWeights(accumulate)
        self.steps = 0
        self._loops = Loops()
        # Looked at once: the first backward tells whether the loop knows of autocast.
        self._autocast_in_doubt = self.recipe.forward_format is not None
        schedulers = () if scheduler is None else scheduler
        self._assembly = assemble(
            models,
            self.optimizers,
            self.recipe,
            clipping=Clipping(clip_norm, clip_value, clip_adaptive),
            schedulers=schedulers if isinstance(schedulers, Sequence) else [schedulers],
            average=average,
            seed=seed,
            parallel=Parallel(parallel, ddp or {}, dp or {}, sync_batchnorm),
        )
        self.models, self.bare_models = self._assembly.models, self._assembly.bare_models
        self.resolution = self._assembly.resolution
        self._plain = PlainSteps.of(self._assembly, self._weights, self._loops)
        self._closed = False

    def __del__(self) -> None:
        """Close an engine that was dropped: its models outlive it, and would stay changed."""
        if not (self._closed or sys.is_finalizing()):
            self.close()

    @property
    def model(self) -> nn.Module:
        """The model, when there is one, in the wrapper that is to be called."""
        return self.models[0] if len(self.models) == 1 else only(self.models, "model")

    @property
    def bare_model(self) -> nn.Module:
        """The model without a wrapper, when there is one: for its state, and for export."""
        return only(self.bare_models, "bare_model")

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer, when there is one."""
        return only(self.optimizers, "optimizer")

    @property
    def techniques(self) -> Sequence[Technique]:
        """What the recipe is carried out by."""
        return self._assembly.techniques

    @property
    def accumulate(self) -> int:
        """Micro-steps to an optimizer step."""
        return self._weights.accumulate

    @property
    def loss_scale(self) -> float:
        """The loss scale now; 1 without one. Reading it waits for the device."""
        shared = self._assembly.scales.shared
        return 1.0 if shared is None else float(shared.scale)

    @property
    def skipped(self) -> int:
        """Optimizer steps left out so far, as a gradient was not finite; waits for the device."""
        return self._assembly.settlement.skipped

    @property
    def loss_scales(self) -> Mapping[Hashable, LossScaler]:
        """The shared loss scale under None, and those of losses with a `loss_id`; with history."""
        return self._assembly.scales.scalers

    def batches(
        self, loader: Iterable[_Item], *, to: torch.device | str | int | None = None
    ) -> Batches[_Item]:
        """Iterate over `loader`, one batch ahead, so that the last window closes when it ends.

        Each iterator knows its own end: where several are advanced together (`zip`), the first that
        ends closes the window; an inner loop is not closed by the last batch of an outer one.

        Args:
            loader: What to iterate over.
            to: A GPU that batches are to be copied to while the step before them is computed; see
                `halfstep.feed.prefetch`. By default, and on a CPU, they stay as they are.
        """
        return Batches(loader if to is None else prefetch(loader, to), self._loops)

    def autocast(self) -> AbstractContextManager[None]:
        """Enter the forward context of the recipe, whatever it is: forward passes and losses."""
        return ForwardPass(self._assembly, self._begin_forward)

    def _begin_forward(self) -> None:
        assembly = self._assembly
        self._autocast_in_doubt = False
        for window in assembly.windows:
            window.finish_norm()
        if assembly.replicas.expected:
            assembly.replicas.open(self._closing(self._chosen(None), ahead=1))
        elif assembly.hooks.adopt:
            assembly.refresh()

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
        self._refuse_closed()
        with step_observer.active.work():
            if (
                self._plain
                and optimizers is None
                and loss_id is None
                and not self._autocast_in_doubt
                and self._plain.backward(loss, samples, retain_graph=retain_graph)
            ):
                return
            windows = self._chosen(optimizers)
            if torch.is_autocast_enabled(loss.device.type):
                misuse.warn_backward_in_autocast()
            if self._autocast_in_doubt:
                self._autocast_in_doubt = False
                misuse.warn_outside_autocast(loss, self.recipe)
            for window in windows:
                window.finish_norm()
                if window.lost_gradients:
                    misuse.warn_lost()
            loss = self._weights.weigh(loss, samples, windows, self._assembly.ranks)
            assembly, limited = self._assembly, optimizers is not None
            try:
                accumulate_gradients(
                    assembly, loss, windows, loss_id, limited=limited, retain_graph=retain_graph
                )
            except BaseException:
                # Out of memory, say: some gradients are there and some are not.
                self.zero_grad(optimizers=optimizers)
                raise

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
        scaler = self._assembly.scales.shared
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
            LossScaleCollapse: If no loss scale helped in the step before; gradients are dropped.
        """
        self._refuse_closed()
        with step_observer.active.work():
            try:
                self._assembly.settlement.settle()
            except LossScaleCollapse:
                self._assembly.unmake_statistics()
                self.zero_grad()
                raise
            if self._plain and optimizers is None and closure is None:
                result = self._plain.step(self.steps + 1, close=close)
                if result is not None:
                    self.steps += result is not OPEN_WINDOW
                    return result
            assembly = self._assembly
            windows = self._chosen(optimizers)
            if closure is None:
                pending = [window for window in windows if window.pending]
                if not pending or assembly.evaluates_inside:
                    refuse_untimely(windows)
            else:
                refuse_closure(len(windows), self.accumulate, assembly.clipping, self.recipe)
                pending = windows
            if assembly.scales and any(window.is_touched for window in pending):
                misuse.warn_touched()
            for window in pending:
                window.end_micro_step()
            closing = pending if close else self._closing(pending)
            self._weights.set_remaining(closing, assembly.ranks)
            self.steps += bool(closing)
            return close_windows(assembly, closing, step=self.steps, closure=closure)

    def zero_grad(self, *, optimizers: Sequence[Optimizer] | None = None) -> None:
        """Drop gradients and what their window has seen."""
        with step_observer.active.work():
            self._assembly.zero_grad(self._chosen(optimizers))

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Validate as the recipe says: eval mode, no gradients, averaged weights if kept."""
        with ExitStack() as stack:
            for window in self._assembly.windows:
                window.finish_norm()
            for average in self._assembly.averages:
                stack.enter_context(average.applied())
            stack.enter_context(eval_mode(self.models))
            stack.enter_context(ForwardPass(self._assembly))
            yield

    def averaged_state_dict(self, model: nn.Module | None = None) -> dict[str, torch.Tensor]:
        """Return the fp32 state of `model` with the averaged weights in place of the current ones.

        Raises:
            ValueError: If the engine keeps no average.
        """
        return averaged_state_dict(model or self.bare_model, self._assembly.averages)

    def flush(self) -> None:
        """Settle what follows from the last step: schedulers, loss-scale history.

        Raises:
            LossScaleCollapse: If the loss scale cannot help any more.
        """
        self._assembly.settlement.settle()

    def state_dict(self) -> dict[str, Any]:
        """Return everything a resume needs beside the models: plain containers and tensors.

        Optimizers, loss scales, schedulers, counters, averages, and a half-filled window. Every one
        of several processes calls it. It is whole on the first one only with
        `ZeroRedundancyOptimizer`, and made of shards, for `save_sharded`, after `halfstep.shard`.
        """
        self.flush()
        self._assembly.refresh()
        saved = save_assembly(self._assembly, self.recipe, self._weights)
        return {**saved, "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned; load the models' own states as usual.

        Raises:
            ValueError: If the state is of another number of optimizers, schedulers or averages, or
                holds a window half-filled under another `accumulate`.
        """
        self.flush()
        self._assembly.refresh()
        same_recipe = load_assembly(self._assembly, state, self.recipe, self._weights)
        self.steps = state["steps"]
        if not same_recipe:
            self.zero_grad()

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

    def _chosen(self, optimizers: Sequence[Optimizer] | None) -> list[Window]:
        """Bring the windows up to date, and return those of `optimizers`, or all of them."""
        for window in self._assembly.windows:
            window.refresh()
        return selected(self._assembly.windows, optimizers)

    def _closing(self, windows: Sequence[Window], ahead: int = 0) -> list[Window]:
        """Return the windows that are full, or will be in `ahead` micro-steps, or end a loop."""
        full = self._weights.accumulate - ahead
        if full > 1 - ahead and self._loops.at_last_batch:  # else every window is full
            full = 0
        return [window for window in windows if window.micro_steps >= full]

    def _refuse_closed(self) -> None:
        """Refuse to train once everything is given back."""
        if self._closed:
            raise RuntimeError("this engine is closed; build a new Engine(model, optimizer, ...)")

    def _give_back(self) -> None:
        step_observer.active.closes()
        self._closed, self._plain = True, None
        self.models = self.bare_models
        self._assembly.close()
