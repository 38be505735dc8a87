"""Master weights: the optimizer owns fp32 copies of half parameters and updates those.

Micikevicius et al., "Mixed Precision Training" (arXiv:1710.03740), section 3.1. The copies are made
from the weights as they were before they were cast, stay in `optimizer.param_groups` for good, and
are what `state_dict()` of the model gives, so that a checkpoint is exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from halfstep.techniques.base import HALVES, Technique, as_function
from halfstep.techniques.params import norm_tensors

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle


class MasterWeights(Technique):
    """Keep fp32 master weights for every parameter that a recipe puts into a half format.

    Args:
        norms: "fp32" when norm layers stay in fp32 and so need no masters.
    """

    reshapes_params = True

    def __init__(self, *, norms: Literal["fp32"] | None = None) -> None:
        self._norms_need_none = norms == "fp32"
        self._optimizers: Sequence[Optimizer] = ()
        self._masters: dict[torch.Tensor, nn.Parameter] = {}
        self._sources: dict[torch.Tensor, torch.Tensor] = {}
        self._handles: list[RemovableHandle] = []

    def prepare(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Copy what the optimizers hold, before the models are cast."""
        self._optimizers = optimizers
        wanted: set[torch.Tensor] = {param for model in models for param in model.parameters()}
        if self._norms_need_none:
            wanted -= {tensor for model in models for tensor in norm_tensors(model)}
        for optimizer in optimizers:
            self._take_over(optimizer, wanted)
        for module in (module for model in models for module in model.modules()):
            self._handles += [
                module.register_state_dict_post_hook(as_function(self._export)),
                module.register_load_state_dict_pre_hook(as_function(self._import)),
            ]

    def adopt(self, optimizer: Optimizer) -> None:
        """Make masters for half parameters that were added since."""
        added = {
            p for group in optimizer.param_groups for p in group["params"] if p.dtype in HALVES
        }
        self._take_over(optimizer, added)

    def model_params(self, params: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Map masters to the parameters that they stand for."""
        return [self._sources.get(param, param) for param in params]

    def full_precision(self, param: torch.Tensor) -> torch.Tensor:
        """Return the master of `param`."""
        return self._masters.get(param, param)

    def before_step(self, optimizer: Optimizer, params: Sequence[torch.Tensor]) -> None:
        """Give the gradients to the masters in fp32; those kept in fp32 are shared, not copied."""
        del params
        for group in optimizer.param_groups:
            for master in group["params"]:
                source = self._sources.get(master)
                if source is not None:
                    master.grad = None if source.grad is None else source.grad.float()

    def after_step(self, optimizer: Optimizer) -> None:
        """Round the masters into the model's parameters and drop their gradients."""
        stood_for, masters = [], []
        for group in optimizer.param_groups:
            for master in group["params"]:
                if master in self._sources and master.grad is not None:
                    stood_for.append(self._sources[master])
                    masters.append(master)
                    master.grad = None
        if masters:
            with torch.no_grad():
                torch._foreach_copy_(stood_for, masters)

    def close(self) -> None:
        """Give the optimizers the model's parameters back, with the values of the masters.

        Called when these have their own format again.
        """
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["params"] = [self._sources.get(param, param) for param in group["params"]]
            for master, param in self._sources.items():
                if master in optimizer.state:
                    optimizer.state[param] = optimizer.state.pop(master)
        with torch.no_grad():
            for master, param in self._sources.items():
                param.copy_(master)
        self._masters.clear()
        self._sources.clear()

    def _take_over(self, optimizer: Optimizer, wanted: set[torch.Tensor]) -> None:
        for group in optimizer.param_groups:
            for position, param in enumerate(group["params"]):
                if param not in wanted or not param.is_floating_point():
                    continue
                master = nn.Parameter(param.detach().float().clone(), param.requires_grad)
                self._masters[param], self._sources[master] = master, param
                group["params"][position] = master
                if param in optimizer.state:
                    optimizer.state[master] = optimizer.state.pop(param)

    def _named(self, module: nn.Module, prefix: str) -> list[tuple[str, nn.Parameter]]:
        # A deep copy of a model calls these hooks too, with parameters that are not ours.
        return [
            (prefix + name, self._masters[param])
            for name, param in module._parameters.items()  # noqa: SLF001  # tied ones too
            if param is not None and param in self._masters
        ]

    def _export(self, module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        for name, master in self._named(module, prefix):
            if name in state:
                state[name] = master.detach()

    def _import(self, module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        for name, master in self._named(module, prefix):
            value = state.get(name)
            if isinstance(value, torch.Tensor) and value.shape == master.shape:
                with torch.no_grad():
                    master.copy_(value)
