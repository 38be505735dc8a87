"""Recipes and doctor in Lightning's `Trainer`: `pip install halfstep[lightning]`.

```python
from halfstep.lightning import RecipePrecision, WatchCallback

trainer = lightning.Trainer(plugins=RecipePrecision("fp16"), callbacks=WatchCallback())
```
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.utilities import GradClipAlgorithmType
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.optim import SGD, Optimizer
from torch.utils._pytree import tree_map

from halfstep.doctor import watch
from halfstep.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import nn

    from halfstep.doctor import Diagnosis, Session
    from halfstep.recipe import Recipe


class RecipePrecision(Precision):
    """A precision plugin: each training step runs under a recipe, by halfstep's engine.

    The engine unscales, clips and checks the gradients, steps the optimizer and updates the loss
    scale; so `on_before_optimizer_step` sees gradients that still have the loss scale. The Trainer
    accumulates, and its `gradient_clip_val` is what the engine clips to.

    Args:
        recipe: A recipe, as for `halfstep.Engine`.
        settings: Other arguments of `halfstep.Engine`, such as `nonfinite` or `seed`.

    Attributes:
        engine: The engine; None before the Trainer has set up its optimizers.
    """

    def __init__(self, recipe: str | Recipe | Mapping[str, Any], **settings: Any) -> None:
        self.engine: Engine | None = None
        self._recipe, self._settings = recipe, settings

    @property
    def precision(self) -> str:
        """The name of the recipe."""
        return str(getattr(self._recipe, "name", self._recipe))

    def connect(
        self, model: nn.Module, optimizers: list[Optimizer], lr_schedulers: list[Any]
    ) -> tuple[nn.Module, list[Optimizer], list[Any]]:
        """Build the engine, which applies the recipe to the model.

        Raises:
            ValueError: If the module optimizes by hand, or overrides what the engine does.
            TypeError: If the strategy has wrapped the module for several processes.
        """
        if not isinstance(model, pl.LightningModule):
            raise TypeError(
                f"the Trainer's strategy wraps the module in {type(model).__name__}, and "
                "RecipePrecision takes one process with one device; write devices=1"
            )
        _refuse_own_steps(model)
        clipping: dict[str, Any] = {}
        if limit := model.trainer.gradient_clip_val:
            by_value = model.trainer.gradient_clip_algorithm == GradClipAlgorithmType.VALUE
            clipping = {"clip_value" if by_value else "clip_norm": float(limit)}
        self.teardown()
        # A Trainer that only evaluates has no optimizers.
        trained = optimizers or [SGD(model.parameters(), lr=0.0)]
        self.engine = Engine(model, trained, recipe=self._recipe, **clipping, **self._settings)
        return model, optimizers, lr_schedulers

    def convert_input(self, data: Any) -> Any:
        """Cast a batch to the format of the parameters, if the recipe trains them in half.

        The Trainer calls `training_step`, not the model, so that the engine cannot cast the inputs
        and outputs of the model. A module whose loss needs fp32 casts its outputs: `.float()`.
        """
        formats = {param.dtype for param in self._engine.bare_model.parameters()}
        narrow = formats & {torch.float16, torch.bfloat16}
        return tree_map(lambda leaf: _cast(leaf, *narrow), data) if narrow else data

    @contextmanager
    def train_step_context(self) -> Iterator[None]:
        """Run a forward pass of training under the recipe."""
        with self._engine.autocast():
            yield

    @contextmanager
    def forward_context(self) -> Iterator[None]:
        """Run a forward pass of validation, test or prediction under the recipe."""
        with self._engine.evaluating():
            yield

    def backward(
        self,
        tensor: torch.Tensor,
        model: pl.LightningModule,
        optimizer: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Accumulate the gradients of a loss."""
        del model, optimizer, args
        self._engine.backward(tensor, retain_graph=kwargs.get("retain_graph", False))

    def optimizer_step(
        self, optimizer: Any, model: pl.LightningModule, closure: Callable[[], Any], **kwargs: Any
    ) -> Any:
        """Compute the loss and its gradients, and step."""
        del kwargs
        loss = closure()
        self._after_closure(model, optimizer)
        if loss is not None:  # `training_step` may leave a batch out
            self._engine.step()
        return loss

    def clip_gradients(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the engine clips."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the engine, for the Trainer's checkpoints."""
        return {} if self.engine is None else {"engine": self.engine.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of a checkpoint."""
        if state_dict:
            self._engine.load_state_dict(state_dict["engine"])

    def teardown(self) -> None:
        """Undo the engine's changes to the model."""
        if self.engine is not None:
            self.engine.close()
            self.engine = None

    @property
    def _engine(self) -> Engine:
        assert self.engine is not None, "the Trainer connects its plugin before the first step"
        return self.engine


def _cast(leaf: Any, dtype: torch.dtype) -> Any:
    is_real = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    return leaf.to(dtype) if is_real else leaf


def _refuse_own_steps(module: pl.LightningModule) -> None:
    name = type(module).__name__
    if not module.automatic_optimization:
        raise ValueError(
            f"{name}.automatic_optimization is False, and RecipePrecision steps the optimizers "
            "itself; use halfstep.Engine in training_step, without the plugin"
        )
    for hook in ("backward", "optimizer_step", "configure_gradient_clipping"):
        if is_overridden(hook, module):
            raise ValueError(
                f"{name} overrides {hook}, which RecipePrecision would not call; remove it, or use "
                "halfstep.Engine in training_step, without the plugin"
            )


class WatchCallback(pl.Callback):
    """Watches `trainer.fit` by doctor, and prints the diagnosis when it ends.

    Args:
        quiet: Whether to print nothing at the end.

    Attributes:
        diagnosis: The diagnosis of the last `fit`; None before it ends.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.diagnosis: Diagnosis | None = None
        self._quiet = quiet
        self._session: Session | None = None

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start to watch."""
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self._session = watch(pl_module, list(trainer.optimizers), scaler, quiet=self._quiet)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop to watch, and diagnose."""
        del trainer, pl_module
        self._end(None)

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Diagnose training that ended by an exception."""
        del trainer, pl_module
        self._end(exception)

    def _end(self, error: BaseException | None) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.__exit__(None if error is None else type(error), error, None)
            self.diagnosis = session.diagnose()
