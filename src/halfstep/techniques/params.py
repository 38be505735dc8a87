"""Parameters in a chosen format, with norm layers kept in fp32 where a recipe says so.

The model is changed in place, parameter identity and ties kept, and its forward casts what goes in
and comes out by hooks that hold nothing but dtypes, so that a deep copy of the model works on its
own weights. `state_dict()` of the model gives fp32 whatever the format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_map

from halfstep.formats import torch_dtype
from halfstep.techniques.base import Technique

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from halfstep.recipe import ParamFormat

_HALVES = (torch.float16, torch.bfloat16)


class ParameterFormat(Technique):
    """Cast the parameters and buffers of the models.

    Args:
        format_: Format of floating-point parameters and buffers.
        norms: "fp32" keeps those of norm layers, and their arithmetic, in fp32.
        outputs: "fp32" casts half tensors that a model returns.
    """

    def __init__(
        self,
        format_: ParamFormat,
        *,
        norms: Literal["fp32"] | None = None,
        outputs: Literal["fp32"] | None = None,
    ) -> None:
        self.reshapes_params = format_ != "fp32"
        self._dtype = torch_dtype(format_)
        self._keep_norms = norms == "fp32"
        self._cast_outputs = outputs == "fp32"
        self._handles: list[RemovableHandle] = []

    def prepare(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Cast the models and give them the hooks that their new format needs."""
        del optimizers
        for model in models:
            self._cast(model)
            if not self.reshapes_params:
                continue
            if self._keep_norms:
                for module in filter(is_norm, model.modules()):
                    # Batch norm takes half inputs beside fp32 parameters on every device and
                    # computes in fp32; a cast would only make it save an fp32 input.
                    if not isinstance(module, _NormBase):
                        self._cast_around(module, torch.float32, self._dtype)
            outputs = torch.float32 if self._cast_outputs else None
            self._cast_around(model, self._dtype, outputs)
            self._handles.append(model.register_state_dict_post_hook(_widen_state_dict))

    def close(self) -> None:
        """Take the hooks off; the parameters stay in their format."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _cast(self, model: nn.Module) -> None:
        kept = norm_tensors(model) if self._keep_norms else set()
        for module in model.modules():
            for tensor in _own_tensors(module):
                if tensor.is_floating_point():
                    wanted = torch.float32 if tensor in kept else self._dtype
                    if tensor.dtype != wanted:
                        tensor.grad = None
                        tensor.data = tensor.data.to(wanted)

    def _cast_around(
        self, module: nn.Module, inside: torch.dtype, outside: torch.dtype | None
    ) -> None:
        hook = module.register_forward_pre_hook(_casts_inputs(inside), with_kwargs=True)
        self._handles.append(hook)
        if outside is not None:
            self._handles.append(module.register_forward_hook(_casts_outputs(outside)))


def is_norm(module: nn.Module) -> bool:
    """Tell whether `module` is a norm layer.

    Those of torch are known by class, others (a hand-written RMS norm) by a class name that says
    "norm" and parameters of their own.
    """
    if isinstance(module, (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)):
        return True
    named = "norm" in type(module).__name__.lower()
    return named and next(module.parameters(recurse=False), None) is not None


def norm_tensors(model: nn.Module) -> set[torch.Tensor]:
    """Return the parameters and buffers of the norm layers of `model`."""
    return {t for module in model.modules() if is_norm(module) for t in _own_tensors(module)}


def _own_tensors(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]


def _casts_inputs(dtype: torch.dtype) -> Callable[..., tuple[Any, Any]]:
    def hook(_: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return _cast_leaves(args, dtype), _cast_leaves(kwargs, dtype)

    return hook


def _casts_outputs(dtype: torch.dtype) -> Callable[..., Any]:
    def hook(_: nn.Module, __: Any, output: Any) -> Any:
        return _cast_leaves(output, dtype)

    return hook


def _cast_leaves(tree: Any, dtype: torch.dtype) -> Any:
    def cast(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            return leaf.to(dtype)
        return leaf

    return tree_map(cast, tree)


def _widen_state_dict(_: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    del metadata
    for name, value in state.items():
        if name.startswith(prefix) and isinstance(value, torch.Tensor) and value.dtype in _HALVES:
            state[name] = value.float()
