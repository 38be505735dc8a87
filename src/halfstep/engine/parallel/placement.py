"""Wraps the models of one engine for several devices, as the arguments of `Engine` request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from halfstep.engine.parallel.ddp import refuse_no_processes
from halfstep.engine.parallel.dp import on_all_gpus, refuse_data_parallel
from halfstep.engine.parallel.wrappers import wrapper_of
from halfstep.layers.sync_batchnorm import synchronize_batchnorm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from halfstep.engine.parallel.ddp import Replicas
    from halfstep.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Parallel:
    """The arguments of `Engine` for several devices.

    Attributes:
        how: "ddp" or "dp"; None to leave the models as they are (wrapped, sharded or bare).
        ddp: Arguments of `DistributedDataParallel`.
        dp: Arguments of `DataParallel`.
        sync_batchnorm: Whether BatchNorm computes its statistics over all processes.
    """

    how: str | None
    ddp: Mapping[str, Any] = field(default_factory=dict)
    dp: Mapping[str, Any] = field(default_factory=dict)
    sync_batchnorm: bool = False

    @property
    def in_threads(self) -> bool:
        """Whether the forward pass of a model runs as replicas in threads of this process."""
        return self.how == "dp"

    def refuse(self, models: Sequence[nn.Module], recipe: Recipe) -> None:
        """Refuse settings that do not work with these models under a recipe.

        Raises:
            ValueError: If `how` is unknown, a setting would have no effect, a model is already
                wrapped, or the models or the recipe do not work with `how`.
            RuntimeError: If the process group or the GPUs that `how` needs do not exist.
        """
        self._refuse_settings()
        if self.how == "ddp":
            refuse_no_processes()
        for model in models if self.how else ():
            wrapper = wrapper_of(model)
            if wrapper:
                raise ValueError(
                    f"parallel={self.how!r} wraps bare models, but one is in {wrapper} already; "
                    "leave parallel out, or give the bare model"
                )
        if self.how == "dp":
            refuse_data_parallel(models, recipe, self.dp)

    def synchronized(self, models: list[nn.Module]) -> list[nn.Module]:
        """Return the models, with BatchNorm synchronized over processes if requested."""
        if not self.sync_batchnorm:
            return models
        group = self.ddp.get("process_group")
        return [synchronize_batchnorm(model, group) for model in models]

    def wrap(self, models: list[nn.Module], replicas: Replicas) -> list[nn.Module]:
        """Return the models in their wrappers, to be called in training.

        Args:
            models: Bare models, already changed by the techniques.
            replicas: Creates and registers the `DistributedDataParallel` wrappers.
        """
        if self.how == "ddp":
            return [replicas.wrap(model, self.ddp) for model in models]
        if self.how == "dp":
            return [on_all_gpus(model, self.dp) for model in models]
        return models

    def _refuse_settings(self) -> None:
        if self.how not in (None, "ddp", "dp"):
            raise ValueError(
                f"parallel is {self.how!r}; allowed: 'ddp', 'dp' or None; for FSDP2 write "
                "model = halfstep.shard(model, recipe) before the optimizer"
            )
        if self.dp and self.how != "dp":
            raise ValueError("dp is given without parallel='dp'; write it, or leave dp out")
        if (self.ddp or self.sync_batchnorm) and self.how != "ddp":
            given = "ddp" if self.ddp else "sync_batchnorm"
            raise ValueError(
                f"{given} is given without parallel='ddp'; write it, or leave {given} out "
                "(halfstep.shard has its own sync_batchnorm)"
            )
