"""The engine: runs one training step under a recipe. Only the engine calls backward and step.

`plan/` holds the course of a step. The techniques do everything that depends on a number format.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from halfstep import step_observer
from halfstep.engine import misuse
from halfstep.engine.assemble import assemble
from halfstep.engine.average import EMA, SWA, averaged_state_dict
from halfstep.engine.closing.clipping import Clipping
from halfstep.engine.closure import refuse_closure
from halfstep.engine.evaluate import eval_mode
from halfstep.engine.graphs import recorders
from halfstep.engine.graphs.captured import CapturedStep
from halfstep.engine.parallel.placement import Parallel
from halfstep.engine.passes.batches import Batches, Loops
from halfstep.engine.passes.grad import true_gradients
from halfstep.engine.passes.traces import other_format_of_products
from halfstep.engine.passes.weights import MicroBatchWeights
from halfstep.engine.plan.backward import BackwardPasses
from halfstep.engine.plan.forward import ForwardPass
from halfstep.engine.plan.replay import refusals
from halfstep.engine.plan.step import StepPlan, refuse_untimely
from halfstep.engine.selection import listed, only, selected
from halfstep.engine.state import load_assembly, save_assembly
from halfstep.feed.prefetching import prefetch
from halfstep.formats import torch_dtype
from halfstep.mechanisms.loss_scale.scaler import LossScaleCollapse, LossScaler
from halfstep.recipe import Recipe
from halfstep.recipe import recipe as find_recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator
    from pathlib import Path

    from torch.optim.lr_scheduler import LRScheduler

    from halfstep.engine.assemble import Assembly
    from halfstep.engine.closing.result import StepResult
    from halfstep.engine.window.window import Window
    from halfstep.mechanisms.technique import Technique

_Item = TypeVar("_Item")


def refuse_closed() -> None:
    """Raise the error for training with a closed engine."""
    raise RuntimeError("this engine is closed; build a new Engine(model, optimizer, ...)")


class Engine:
    """Runs training steps under a recipe, in your own training loop.

    ```python
    engine = Engine(model, optimizer, recipe="fp16", accumulate=4, clip_norm=1.0)
    for images, labels in engine.batches(loader):
        with engine.autocast():
            loss = criterion(engine.model(images), labels)
        engine.backward(loss)
        result = engine.step()
    ```

    With a model on a CPU, half precision is rehearsed, that is, emulated: losses, skipped steps and
    the loss scale are like those on a GPU, times are not. So take some steps there before the GPU.

    Args:
        model: One model or a list of models, already on their devices.
        optimizer: One optimizer or a list of optimizers over the models' parameters.
        recipe: A name, names joined by "+", a mapping of fields, a `Recipe`, or the path of a
            config whose recipe is used (for example "advice/t4.yaml", written by
            `halfstep advise --out`).
        accumulate: Number of micro-steps per optimizer step; together they are a *window*. The loss
            is averaged over them.
        clip_norm: Maximum 2-norm of each optimizer's gradients, after unscaling.
        clip_value: Maximum absolute value of a gradient element, after unscaling.
        clip_adaptive: Maximum ratio of gradient norm to weight norm for each output unit: a row
            of a linear layer, a filter of a convolution (adaptive gradient clipping).
        scheduler: One scheduler or a list of schedulers. Each is stepped once after every step of
            its own optimizer that was not skipped.
        average: `EMA(...)` or `SWA(...)`: keep an average of the weights, for `evaluating`.
        seed: Seed for stochastic rounding.
        parallel: How each model is wrapped after the recipe has been applied to it: "ddp" for
            `DistributedDataParallel`; "dp" for `DataParallel`, which uses all GPUs from one
            process and is slower. Leave it out for models from `halfstep.shard`.
        ddp: Arguments of `DistributedDataParallel`.
        dp: Arguments of `DataParallel`, such as {"device_ids": [0, 1]}.
        sync_batchnorm: Whether BatchNorm synchronizes its statistics across processes; needs
            `parallel="ddp"`.
        nonfinite: What to do with an optimizer whose gradients contain inf or NaN: "skip" its step,
            so that parameters, its state and the running statistics of norm layers stay as before
            the step; "raise" `NonFiniteGradients` before anything is updated; or "apply" the
            gradients unchecked. Under a recipe with a loss scale, all three skip the step, as
            that is how a loss scale finds its value; `LossScaleCollapse` then says when this does
            not help. The check is one pass over the gradients. A fused optimizer reads the result
            on the device; for any other optimizer, and under "raise", the host waits for it once
            per step. The gradients of optimizers that evaluate the loss inside their step (LBFGS)
            are not checked.

    Attributes:
        models: List of the models, each in its DDP or DataParallel wrapper, if any.
        optimizers: List of the optimizers.
        bare_models: List of the models without their wrappers. Save the state of these.
        recipe: The recipe in use.
        resolution: Which parts of the recipe the device runs natively, and which it emulates.
        steps: Number of optimizer steps so far, including skipped ones.

    Raises:
        ValueError: If the recipe is unknown or contradicts itself, if the recipe changes the
            parameters of a model that is already wrapped, if two optimizers share a parameter, or
            if `nonfinite` is none of the three.
        TypeError: If an optimizer or scheduler cannot work under the recipe.
    """

    _closed = True  # until there is something that `close` must undo

    def __init__(  # noqa: PLR0913  (all but two have a default and are given by name)
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        recipe: str | Path | Recipe | Mapping[str, Any] = "fp32",
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
        nonfinite: Literal["skip", "raise", "apply"] = "skip",
    ) -> None:
        models = listed(model, nn.Module, "model")
        self.optimizers = listed(optimizer, Optimizer, "optimizer")
        self.recipe = find_recipe(recipe)
        self._weights = MicroBatchWeights(accumulate)
        self.steps = self._loads = 0
        self._loops = Loops()
        # True until the first forward pass in `autocast` or the first backward. Such a backward
        # checks whether the loop has forgotten `autocast`.
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
            nonfinite=nonfinite,
        )
        self.models, self.bare_models = self._assembly.models, self._assembly.bare_models
        self.resolution = self._assembly.resolution
        self._passes = BackwardPasses(self._assembly, self._weights)
        self._plan = StepPlan(self._assembly)
        self._scaled = bool(self._assembly.scales)
        self._evaluates_inside = self._assembly.evaluates_inside
        self._closed = False

    def __del__(self) -> None:
        """Close an engine that is garbage-collected, so that its models do not stay changed."""
        if not (self._closed or sys.is_finalizing()):
            self.close()

    @property
    def model(self) -> nn.Module:
        """The model in its DDP or DataParallel wrapper, if any; an error with several models."""
        return self.models[0] if len(self.models) == 1 else only(self.models, "model")

    @property
    def bare_model(self) -> nn.Module:
        """The model without the wrapper, to save or export; an error with several models."""
        return only(self.bare_models, "bare_model")

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer; an error with several optimizers."""
        return only(self.optimizers, "optimizer")

    @property
    def techniques(self) -> Sequence[Technique]:
        """The techniques that implement the recipe."""
        return self._assembly.techniques

    @property
    def accumulate(self) -> int:
        """Number of micro-steps per optimizer step."""
        return self._weights.accumulate

    @property
    def loss_scale(self) -> float:
        """The current loss scale; 1 if there is none. Reading it waits for the device."""
        shared = self._assembly.scales.shared
        return 1.0 if shared is None else float(shared.scale)

    @property
    def skipped(self) -> int:
        """Optimizer steps skipped so far for non-finite gradients. Waits for the device."""
        return self._assembly.settlement.skipped

    @property
    def lost_updates(self) -> int | None:
        """Updates so far of bf16 weights that rounded to nothing. Waits for the device.

        Such an update moves the exact value of a weight, but not what is stored of it. Under
        stochastic rounding, that is the rule for small updates, which are right on average; under
        Kahan summation, it is a loss. Counted where one kernel updates bf16 weights: by `update` or
        split `master_weights` on a GPU, and by `Adam8`. None elsewhere.
        """
        owners = (*self.techniques, *self.optimizers)
        counters = [each for one in owners for each in getattr(one, "lost_updates", ())]
        return sum(int(each.sum()) for each in counters) if counters else None

    @property
    def loss_scales(self) -> Mapping[Hashable, LossScaler]:
        """The loss scalers by `loss_id`, with their history; the shared one has the key None."""
        return self._assembly.scales.scalers

    def batches(
        self, loader: Iterable[_Item], *, to: torch.device | str | int | None = None
    ) -> Batches[_Item]:
        """Iterate over `loader` and close the accumulation window with its last batch.

        The iterator fetches one batch ahead to recognize the last one. If several iterators advance
        together (`zip`), the first one to end closes the window. If loops over `batches` are
        nested and `step` is called in the inner loop, the last batch of the inner loop closes the
        window, and the outer loop has no effect on it.

        Args:
            loader: Any iterable of batches.
            to: A GPU. Each batch is copied to it while the GPU computes the previous step; see
                `halfstep.feed.prefetch`. By default, and on a CPU, batches are not copied.
        """
        return Batches(loader if to is None else prefetch(loader, to), self._loops)

    def autocast(self) -> AbstractContextManager[None]:
        """Return the context for the forward pass and the loss; needed under every recipe."""
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
        optimizers: Optimizer | Sequence[Optimizer] | None = None,
        loss_id: Hashable = None,
        retain_graph: bool = False,
        samples: int | None = None,
    ) -> None:
        """Accumulate the gradients of a loss.

        After any error in the backward pass, the gradients that the window has accumulated so far
        are dropped.

        Args:
            loss: Scalar tensor, the mean loss of the micro-batch.
            optimizers: Accumulate gradients only for the parameters of this optimizer, or of
                these; by default for all.
            loss_id: Gives the loss its own loss scale, stored under this key.
            retain_graph: Keep the graph so that another loss can use it.
            samples: Number of samples in the micro-batch, to weight micro-batches of different
                sizes. Pass it for every micro-batch or for none.

        Raises:
            RuntimeError: If `samples` is passed for only some micro-batches, or if the engine is
                closed.
        """
        if self._closed:
            refuse_closed()
        observer = step_observer.active
        if observer.listens:
            with observer.work():
                self._backward(loss, optimizers, loss_id, samples, retain_graph=retain_graph)
        else:
            self._backward(loss, optimizers, loss_id, samples, retain_graph=retain_graph)

    def _backward(
        self,
        loss: torch.Tensor,
        optimizers: Optimizer | Sequence[Optimizer] | None,
        loss_id: Hashable,
        samples: int | None,
        *,
        retain_graph: bool,
    ) -> None:
        windows = self._chosen(optimizers)
        if torch.is_autocast_enabled(loss.device.type):
            misuse.warn_backward_in_autocast()
        if self._autocast_in_doubt:
            self._autocast_in_doubt = False
            assert self.recipe.forward_format is not None
            wanted = torch_dtype(self.recipe.forward_format)
            misuse.warn_outside_autocast(other_format_of_products(loss, wanted), self.recipe)
        for window in windows:
            window.finish_norm()
            if window.lost_gradients:
                misuse.warn_lost()
        limited = optimizers is not None
        self._passes.accumulate(
            loss, windows, loss_id, samples, limited=limited, retain_graph=retain_graph
        )

    def grad(
        self,
        outputs: torch.Tensor,
        inputs: torch.Tensor | Sequence[torch.Tensor],
        *,
        create_graph: bool = False,
        retain_graph: bool | None = None,
        allow_unused: bool = False,
    ) -> tuple[torch.Tensor, ...]:
        """Return unscaled gradients, for example for a gradient penalty.

        Args:
            outputs: Tensor of any shape; the gradient is that of its sum.
            inputs: Tensors to differentiate with respect to.
            create_graph: Whether the gradients can be differentiated again.
            retain_graph: As in `torch.autograd.grad`.
            allow_unused: Whether `outputs` may be independent of an input, whose gradient is then
                zero.

        Returns:
            One gradient per input, in fp32 or wider, without the loss scale.
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
        optimizers: Optimizer | Sequence[Optimizer] | None = None,
        close: bool = False,
        closure: Callable[[], float] | None = None,
    ) -> StepResult:
        """End a micro-step; the last one of a window also steps the optimizers.

        When a window closes, the engine unscales and clips the gradients, steps the optimizers,
        updates the loss scale and zeroes the gradients.

        Args:
            optimizers: The optimizer or optimizers to step; by default all that received gradients.
            close: Close the window even if it is not full.
            closure: For optimizers that evaluate the loss several times in a step (LBFGS). It
                zeroes the gradients, calls `engine.backward` and returns the loss.

        Raises:
            RuntimeError: If there was no backward pass since the last step.
            LossScaleCollapse: If the loss scale collapsed in the previous step, or, on a GPU, in
                an earlier one whose numbers have arrived since. The current gradients are dropped.
            NonFiniteGradients: Under `nonfinite="raise"`, if a gradient contains inf or NaN. The
                gradients are dropped, and the step is not counted.
        """
        if self._closed:
            refuse_closed()
        observer = step_observer.active
        if observer.listens:
            with observer.work():
                return self._step(optimizers, closure, close=close)
        return self._step(optimizers, closure, close=close)

    def _step(
        self,
        optimizers: Optimizer | Sequence[Optimizer] | None,
        closure: Callable[[], float] | None,
        *,
        close: bool,
    ) -> StepResult:
        self._catch_up()
        assembly = self._assembly
        windows = self._chosen(optimizers)
        if closure is None:
            pending = [window for window in windows if window.pending]
            if not pending or self._evaluates_inside:
                refuse_untimely(windows)
        else:
            refuse_closure(len(windows), self.accumulate, assembly.clipping, self.recipe)
            pending = windows
        if self._scaled and any(window.is_touched for window in pending):
            misuse.warn_touched()
        for window in pending:
            window.end_micro_step()
        closing = pending if close else self._closing(pending)
        self._weights.set_remaining(closing, assembly.ranks)
        number = self.steps + bool(closing)
        result = self._plan.close(closing, number=number, closure=closure)
        self.steps = number
        return result

    def capture(
        self,
        loss_function: Callable[..., Any],
        *,
        optimizers: Optimizer | Sequence[Optimizer] | None = None,
    ) -> CapturedStep:
        """Return a step as one call, which a CUDA GPU replays as one graph after the first steps.

        `step(*batch)` stands for the forward pass in `autocast`, `backward` and `step`, and returns
        the result of `step`. On other devices it runs them, and says so once.

        Args:
            loss_function: Returns the loss of a batch, a scalar, or a tuple that begins with it. It
                must not read a tensor on the host (`item`, `print`, an `if` on its value), and must
                launch the same operators for each batch of one shape.
            optimizers: The optimizers that the loss trains, as in `backward` and `step`.

        Raises:
            ValueError: If the steps of this engine cannot be replayed; the message says why.
        """
        if self._closed:
            refuse_closed()
        windows = self._chosen(optimizers)
        if reasons := refusals(self._assembly, windows):
            raise ValueError(f"steps cannot be captured: {'; '.join(reasons)}")
        device = self._assembly.device
        recorder = recorders.new_recorder(device, self.techniques)
        if recorder is None:
            misuse.warn_no_graph(device)
        steps = _Steps(self, self._assembly, windows, loss_function, optimizers)
        return CapturedStep(steps, recorder)

    def zero_grad(self, *, optimizers: Optimizer | Sequence[Optimizer] | None = None) -> None:
        """Zero the gradients and restart the accumulation window, of `optimizers` or of all."""
        with step_observer.active.work():
            self._assembly.zero_grad(self._chosen(optimizers))

    def discard(self) -> None:
        """Leave out the step of the open windows: drop their gradients, restore running statistics.

        The statistics of norm layers become those from before the windows, as in a skipped step.
        They stay as they are under `nonfinite="apply"` without a loss scale.
        """
        with step_observer.active.work():
            self._assembly.unmake_statistics()
            self._assembly.zero_grad(self._chosen(None))

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Run validation under the recipe, in eval mode without gradients.

        The models use their averaged weights if the engine keeps an average.
        """
        with ExitStack() as stack:
            for window in self._assembly.windows:
                window.finish_norm()
            for average in self._assembly.averages:
                stack.enter_context(average.applied())
            stack.enter_context(eval_mode(self.models))
            stack.enter_context(ForwardPass(self._assembly))
            yield

    def averaged_state_dict(self, model: nn.Module | None = None) -> dict[str, torch.Tensor]:
        """Return the fp32 state dict of `model` with averaged weights instead of current ones.

        Raises:
            ValueError: If the engine keeps no average.
        """
        return averaged_state_dict(model or self.bare_model, self._assembly.averages)

    def flush(self) -> None:
        """Finish all steps now: step the schedulers and update the loss-scale history.

        Otherwise this happens at the start of the next step, or, on a GPU without schedulers, of a
        later one, so that no step waits.

        Raises:
            LossScaleCollapse: If the loss scale collapsed in the last step.
        """
        self._assembly.settlement.settle()

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to resume, except the models' own states.

        It holds the states of optimizers, loss scales, schedulers, counters, averages and a
        partly filled accumulation window, as plain containers and tensors. In distributed training
        every process must call it. With `ZeroRedundancyOptimizer` only rank 0 gets the complete
        state. After `halfstep.shard` the state consists of shards; save it with `save_sharded`.
        """
        self.flush()
        self._assembly.refresh()
        saved = save_assembly(self._assembly, self.recipe, self._weights)
        return {**saved, "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state that `state_dict` returned; load the models' own states separately.

        Raises:
            ValueError: If parts of the state are missing, if the number of optimizers, schedulers
                or averages differs, or if the state holds a partly filled window and `accumulate`
                differs. Nothing has been loaded then.
        """
        self.flush()
        self._assembly.refresh()
        same_recipe = load_assembly(self._assembly, state, self.recipe, self._weights)
        self.steps = state["steps"]
        self._loads += 1
        if not same_recipe:
            self.zero_grad()

    def close(self) -> None:
        """Finish the last step and undo every change to models, optimizers and settings.

        Models return to their original dtype, with the most precise weights available, and the
        optimizers hold the models' parameters again, not master weights. Only BatchNorm layers that
        `sync_batchnorm` has changed stay synchronized. A closed engine cannot train.

        Raises:
            LossScaleCollapse: If the loss scale collapsed in the last step. All changes are undone
                even then.
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

    def _catch_up(self) -> None:
        try:
            self._assembly.settlement.catch_up()
        except LossScaleCollapse:
            self.discard()
            raise

    def _begin_step(self) -> None:
        """Do what precedes a step that may be replayed."""
        if self._closed:
            refuse_closed()
        self._catch_up()
        for window in self._assembly.windows:
            window.refresh()
            window.finish_norm()

    def _chosen(self, optimizers: Optimizer | Sequence[Optimizer] | None) -> list[Window]:
        """Refresh all windows; return those of `optimizers`, by default all."""
        for window in self._assembly.windows:
            window.refresh()
        windows = self._assembly.windows
        return windows if optimizers is None else selected(windows, optimizers)

    def _closing(self, windows: Sequence[Window], ahead: int = 0) -> list[Window]:
        """Return the windows to close: those full in `ahead` micro-steps; at a last batch, all."""
        if self._weights.accumulate == 1:
            return [*windows]  # full anyway, so the loops need not be checked
        full = self._weights.accumulate - ahead
        if self._loops.at_last_batch:
            full = 0
        return [window for window in windows if window.micro_steps >= full]

    def _give_back(self) -> None:
        step_observer.active.closes()
        self._closed = True
        self.models = self.bare_models
        self._assembly.close()


@dataclass(slots=True)
class _Steps:
    """The steps of an engine for `CapturedStep`; see its protocol."""

    engine: Engine
    assembly: Assembly
    windows: list[Window]
    loss_function: Callable[..., Any]
    optimizers: Optimizer | Sequence[Optimizer] | None

    @property
    def accumulate(self) -> int:
        return self.engine.accumulate

    @property
    def loads(self) -> int:
        return self.engine._loads  # noqa: SLF001  # a part of the engine

    @property
    def steps(self) -> int:
        return self.engine.steps

    @steps.setter
    def steps(self, number: int) -> None:
        self.engine.steps = number

    def begin(self) -> None:
        self.engine._begin_step()  # noqa: SLF001  # a part of the engine

    def closes(self) -> bool:
        return bool(self.engine._closing(self.windows, ahead=1))  # noqa: SLF001

    def take(self, batch: tuple[Any, ...], samples: int | None) -> tuple[Any, StepResult]:
        with self.engine.autocast():
            returned = self.loss_function(*batch)
        loss = returned[0] if isinstance(returned, tuple) else returned
        self.engine.backward(loss, optimizers=self.optimizers, samples=samples)
        return returned, self.engine.step(optimizers=self.optimizers)
