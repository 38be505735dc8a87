"""Parameters in a chosen format, with norm layers in fp32 if the recipe says so.

The model is changed in place; parameters stay the same objects and tied parameters stay tied. Hooks
cast the inputs and outputs of its forward. They contain only dtypes, so that the hooks of a deep
copy do not refer to the original model. `state_dict()` of the model or of a part of it returns fp32
for every format.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_map

from halfstep.formats import torch_dtype
from halfstep.formats.dtypes import HALVES
from halfstep.mechanisms.technique import Stage, Technique, no_own_formats
from halfstep.optim.zero import local_optimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from halfstep.mechanisms.technique import OwnFormats


# Each of torch's error messages about mixed formats matches both patterns.
_HALF = re.compile("Half|BFloat16|float16|mixed dtype")
_WIDE = re.compile(r"\b([Ff]loat|[Dd]ouble)(32|64|Tensor)?\b")


class ParameterFormat(Technique):
    """Casts the parameters and buffers of the models.

    Args:
        format_: Format of floating-point parameters and buffers.
        own_formats: Returns the modules of a model that have a format of their own, such as norm
            layers in fp32, with this format. It applies to their parameters and their arithmetic.
        outputs: "fp32" casts the half tensors that a model returns to fp32.
    """

    stage = Stage.PARAMETERS
    done_by_sharding = True
    casts_params = True

    def __init__(
        self,
        format_: Literal["fp32", "fp16", "bf16"],
        *,
        own_formats: OwnFormats = no_own_formats,
        outputs: Literal["fp32"] | None = None,
    ) -> None:
        self.reshapes_params = format_ != "fp32"
        self._format = format_
        self._dtype = torch_dtype(format_)
        self._own_formats = own_formats
        self._cast_outputs = outputs == "fp32"
        self._handles: list[RemovableHandle] = []
        self._came_as: dict[torch.Tensor, torch.dtype] = {}
        self._rnns: list[nn.RNNBase] = []
        self._optimizers: Sequence[Optimizer] = ()

    @property
    def enters_forward(self) -> bool:
        """Whether the parameters are half, so that torch's errors need an explanation."""
        return self.reshapes_params

    def prepare(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Cast the models, and register the hooks that half parameters need."""
        self._optimizers = optimizers
        for model in models:
            self._cast(model)
            if not self.reshapes_params:
                continue
            own_formats = self._own_formats(model)
            for module, inside, around in format_changes(model, own_formats, self._format):
                self._handles += cast_at_change(module, inside, around)
            outputs = torch.float32 if self._cast_outputs else None
            self._handles += cast_around(model, self._dtype, outputs)
            for module in model.modules():
                self._handles.append(module.register_state_dict_post_hook(widen_state_dict))

    def forward(self, device: torch.device) -> AbstractContextManager[None]:
        """Return a context that explains torch's errors about wider tensors and half parameters."""
        del device
        return self._explained()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise a TypeError with advice and torch's message, instead of torch's error."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            said = " ".join(str(error).split())
            if not (_HALF.search(said) and _WIDE.search(said)):
                raise
            raise TypeError(
                f"an operator combined {self._format} parameters with a tensor in a wider format, "
                "such as fp32. Only engine.model(inputs) casts its inputs: to call another method, "
                f"write engine.model.method(inputs.to({self._dtype})), and create tensors inside "
                f"the model with the dtype of its inputs. PyTorch's message: {said}"
            ) from error

    def close(self) -> None:
        """Remove the hooks, and restore the wider format that half tensors had originally."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for tensor, dtype in self._came_as.items():
            if tensor.dtype in HALVES:
                recast(tensor, dtype)
        _flatten(self._rnns)
        self._rnns.clear()
        if self._came_as and self.reshapes_params:
            for optimizer in self._optimizers:
                local = local_optimizer(optimizer)
                local.load_state_dict(local.state_dict())  # in the parameters' format
        self._came_as.clear()

    def _cast(self, model: nn.Module) -> None:
        own = own_tensors(self._own_formats(model))
        for module in model.modules():
            for tensor in _own_tensors(module):
                if tensor.is_floating_point():
                    wanted = own.get(tensor, self._dtype)
                    if tensor.dtype != wanted:
                        self._came_as[tensor] = tensor.dtype
                        recast(tensor, wanted)
            if isinstance(module, nn.RNNBase) and not self._came_as.keys().isdisjoint(
                module.parameters(recurse=False)
            ):
                self._rnns.append(module)
        _flatten(self._rnns)


def cast_around(
    module: nn.Module, inside: torch.dtype, outside: torch.dtype | None
) -> list[RemovableHandle]:
    """Register hooks that cast the floating-point inputs and outputs of a module.

    Args:
        module: The module.
        inside: Format of its inputs.
        outside: Format of its outputs; None for no cast.
    """
    handles = [module.register_forward_pre_hook(_casts_inputs(inside), with_kwargs=True)]
    if outside is not None:
        handles.append(module.register_forward_hook(_casts_outputs(outside)))
    return handles


def cast_at_change(module: nn.Module, inside: str, around: str | None) -> list[RemovableHandle]:
    """Register hooks that cast the inputs and outputs of a module with a format of its own.

    Batch norm gets no hooks: on every device it accepts half inputs with fp32 parameters, and
    computes in fp32. With a cast, it would save its input in fp32 for backward.
    """
    if isinstance(module, _NormBase):
        return []
    return cast_around(module, torch_dtype(inside), torch_dtype(around) if around else None)


def format_changes(
    model: nn.Module, own_formats: Mapping[nn.Module, str], format_: str | None
) -> list[tuple[nn.Module, str, str | None]]:
    """Return the modules at which the format changes, each with the formats inside and around it.

    Args:
        model: A model.
        own_formats: The modules that have a format of their own, with this format.
        format_: The format of all other modules; None if it is the surrounding code's.
    """
    found: dict[nn.Module, tuple[str, str | None]] = {}

    def visit(module: nn.Module, around: str | None) -> None:
        runs = type(module).forward is not nn.Module.forward
        inside = own_formats.get(module) if runs else around  # nobody calls a ModuleList's forward
        if inside not in (None, around):
            found.setdefault(module, (inside, around))
        for child in module.children():
            visit(child, inside or around)

    visit(model, format_)
    return [(module, *formats) for module, formats in found.items()]


def is_norm(module: nn.Module) -> bool:
    """Tell whether `module` is a norm layer.

    torch's norm layers are recognised by their class. Other modules are norm layers if they have
    parameters or buffers of their own and the word "Norm" is in the name of their class:
    `RMSNorm2d`, `FrozenBatchNorm`, but not `NormalizedNet`.
    """
    if isinstance(module, (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)):
        return True
    named = re.search(r"[Nn]orm(?![a-z])", type(module).__name__)
    return named is not None and bool(_own_tensors(module))


def own_tensors(own_formats: Mapping[nn.Module, str]) -> dict[torch.Tensor, torch.dtype]:
    """Return the parameters and buffers of the modules in `own_formats`, each with its dtype."""
    return {
        tensor: torch_dtype(format_)
        for module, format_ in own_formats.items()
        for tensor in _own_tensors(module)
    }


def _own_tensors(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]


def _flatten(rnns: Sequence[nn.RNNBase]) -> None:
    """Make the weights of each layer contiguous in memory, which cuDNN's RNN kernels need."""
    for rnn in rnns:
        rnn.flatten_parameters()


def _casts_inputs(dtype: torch.dtype) -> Callable[..., tuple[Any, Any]]:
    def hook(_: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return cast_floating(args, dtype), cast_floating(kwargs, dtype)

    return hook


def _casts_outputs(dtype: torch.dtype) -> Callable[..., Any]:
    def hook(_: nn.Module, __: Any, output: Any) -> Any:
        return cast_floating(output, dtype)

    return hook


def cast_floating(tree: Any, dtype: torch.dtype) -> Any:
    """Cast the floating-point tensors in a nested structure (`torch.utils._pytree`)."""

    def cast(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            return leaf.to(dtype)
        return leaf

    return tree_map(cast, tree)


def recast(tensor: torch.Tensor, dtype: torch.dtype) -> None:
    """Change the format of a parameter or buffer in place, and drop its gradient."""
    tensor.grad = None
    tensor.data = tensor.data.to(dtype)
    if tensor.requires_grad:
        tensor.grad_dtype = dtype


def widen_state_dict(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    """Cast the half tensors that this module itself added to a state dict to fp32.

    Every module has this hook, so each one casts only its own entries.
    """
    for name in (*module._parameters, *module._buffers):  # noqa: SLF001  # names, tied ones too
        value = state.get(prefix + name)
        if value is not None and value.dtype in HALVES:
            state[prefix + name] = value.float()
