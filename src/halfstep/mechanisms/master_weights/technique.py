"""Master weights: the optimizer updates fp32 copies of the half parameters.

Micikevicius et al., "Mixed Precision Training" (arXiv:1710.03740), section 3.1. The copies are made
before the weights are cast, and replace the parameters in `optimizer.param_groups` until the
technique closes. The model's `state_dict()` returns the copies, so that a checkpoint is exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import nn

from halfstep.formats import torch_dtype
from halfstep.formats.dtypes import HALVES
from halfstep.kernels.rounding import round_each
from halfstep.mechanisms.params.technique import own_tensors
from halfstep.mechanisms.technique import Stage, Technique, as_function, no_own_formats

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from halfstep.mechanisms.technique import OwnFormats

_Kept = TypeVar("_Kept")

_made: WeakValueDictionary[int, torch.Tensor] = WeakValueDictionary()


def is_master(tensor: torch.Tensor) -> bool:
    """Tell whether `tensor` is, or was, the master weight of a parameter."""
    return _made.get(id(tensor)) is tensor


class MasterWeights(Technique):
    """Keeps fp32 master weights for every parameter that a recipe casts to a half format.

    Tensors that are in no optimizer, such as frozen weights and buffers, have no master. If the
    half format cannot represent such a tensor exactly, its value before the cast is kept, so that
    it is saved and restored exactly.

    Args:
        format_: The half format.
        own_formats: Returns the modules of a model that have a format of their own, with this
            format. Modules in fp32 need no master weights.
    """

    stage = Stage.MASTERS
    done_by_sharding = True
    reshapes_params = True

    def __init__(self, format_: str, *, own_formats: OwnFormats = no_own_formats) -> None:
        self._dtype = torch_dtype(format_)
        self._own_formats = own_formats
        self._cast_from: dict[torch.Tensor, torch.Tensor | None] = {}
        self._optimizers: Sequence[Optimizer] = ()
        self._masters: dict[torch.Tensor, nn.Parameter] = {}
        self._sources: dict[torch.Tensor, torch.Tensor] = {}
        # For each optimizer, its masters and their model parameters, which every step needs.
        self._pairs: dict[Optimizer, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._handles: list[RemovableHandle] = []

    def prepare(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Replace the optimizers' parameters by fp32 masters, before the models are cast."""
        self._optimizers = optimizers
        wanted: set[torch.Tensor] = {param for model in models for param in model.parameters()}
        own = [item for model in models for item in own_tensors(self._own_formats(model)).items()]
        kept = {tensor for tensor, dtype in own if dtype not in HALVES}
        wanted -= kept
        for optimizer in optimizers:
            self._take_over(optimizer, wanted)
        buffers = {buffer for model in models for buffer in model.buffers()}
        for tensor in (wanted | buffers - kept) - self._masters.keys():
            if tensor.is_floating_point() and tensor.dtype not in HALVES:
                self._remember(tensor, tensor.detach())
        self._export_masters(models)

    def adopt(self, optimizer: Optimizer) -> None:
        """Create masters for the half parameters of `optimizer` that have none yet."""
        held = {param for group in optimizer.param_groups for param in group["params"]}
        self._take_over(optimizer, {param for param in held if param.dtype in HALVES})
        for param in held:
            self._cast_from.pop(param, None)

    def model_params(self, params: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Map masters to their model parameters, and any other parameter to itself."""
        return [self._sources.get(param, param) for param in params]

    def full_precision(self, param: torch.Tensor) -> torch.Tensor:
        """Return the master of `param`, or `param` if it has none."""
        return self._masters.get(param, param)

    def before_step(self, optimizer: Optimizer, params: Sequence[torch.Tensor]) -> None:
        """Set the masters' gradients in fp32; a gradient already in fp32 is shared, not copied."""
        del params
        for master, source in self._pairs[optimizer]:
            master.grad = None if source.grad is None else source.grad.float()

    def after_step(self, optimizer: Optimizer) -> None:
        """Round the masters into the model's parameters, and drop the masters' gradients."""
        stood_for, masters = [], []
        for master, source in self._pairs[optimizer]:
            if master.grad is not None:
                stood_for.append(source)
                masters.append(master)
                master.grad = None
        if masters:
            with torch.no_grad():
                round_each(masters, into=stood_for)

    def close(self) -> None:
        """Replace the masters in the optimizers by the model's parameters, with the same values.

        The parameters must already have their original format again.
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
            for tensor, value in self._cast_from.items():
                if value is not None and _rounds_to(value, tensor, self._dtype):
                    tensor.copy_(value)
        self._masters.clear()
        self._sources.clear()
        self._pairs.clear()
        self._cast_from.clear()

    def _export_masters(self, models: Sequence[nn.Module]) -> None:
        """Register hooks that save and load exact values in state dicts of `models`."""
        for module in (module for model in models for module in model.modules()):
            self._handles += [
                module.register_state_dict_post_hook(as_function(self._export)),
                module.register_load_state_dict_pre_hook(as_function(self._import)),
            ]

    def _take_over(self, optimizer: Optimizer, wanted: set[torch.Tensor]) -> None:
        for group in optimizer.param_groups:
            for position, param in enumerate(group["params"]):
                if param not in wanted or not param.is_floating_point():
                    continue
                master = nn.Parameter(self._exact(param), param.requires_grad)
                self._masters[param], self._sources[master] = master, param
                _made[id(master)] = master
                group["params"][position] = master
                if param in optimizer.state:
                    optimizer.state[master] = optimizer.state.pop(param)
        held = [param for group in optimizer.param_groups for param in group["params"]]
        self._pairs[optimizer] = [
            (master, self._sources[master]) for master in held if master in self._sources
        ]

    def _exact(self, param: torch.Tensor) -> torch.Tensor:
        value = self._cast_from.pop(param, None)
        if value is not None and param.dtype in HALVES:
            value = value.float().to(param.device)
            if torch.equal(value.to(param.dtype), param):
                return value
        return param.detach().float().clone()

    def _remember(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Store the value of a tensor before its cast; None if the half format represents it."""
        exact = _rounds_to(value, value, self._dtype)
        self._cast_from[tensor] = None if exact else value

    def _named(
        self, module: nn.Module, prefix: str, values: Mapping[torch.Tensor, _Kept]
    ) -> list[tuple[str, torch.Tensor, _Kept]]:
        # A deep copy of a model calls these hooks too, with parameters that are not in `values`.
        return [
            (prefix + name, param, values[param])
            for own in (module._parameters, module._buffers)  # noqa: SLF001  # tied ones too
            for name, param in own.items()
            if param is not None and param in values
        ]

    def _export(self, module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        for name, _param, master in self._named(module, prefix, self._masters):
            if name in state:
                state[name] = master.detach()
        for name, param, value in self._named(module, prefix, self._cast_from):
            if name in state and value is not None and _rounds_to(value, param, param.dtype):
                state[name] = value.float()

    def _import(self, module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        for name, _param, master in self._named(module, prefix, self._masters):
            value = state.get(name)
            if isinstance(value, torch.Tensor) and value.shape == master.shape:
                with torch.no_grad():
                    master.copy_(value)
        for name, param, _value in self._named(module, prefix, self._cast_from):
            value = state.get(name)
            if isinstance(value, torch.Tensor) and value.shape == param.shape:
                self._remember(param, value.detach().float().clone())


def _rounds_to(value: torch.Tensor, result: torch.Tensor, dtype: torch.dtype) -> bool:
    """Tell whether `value`, rounded to `dtype`, is equal to `result`."""
    return torch.equal(value.to(result.device, dtype).to(result.dtype), result)
