"""Checks and changes the models for `initialize`: formats, inputs, outputs and state dicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DataParallel, DistributedDataParallel

from halfstep.apex.amp._amp_state import _amp_state, warn_or_err
from halfstep.apex.amp.nested import cast_nested
from halfstep.apex.fp16_utils.convert import convert_module, convert_network
from halfstep.mechanisms.params.technique import widen_state_dict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfstep.apex.amp.properties import Properties


class CastingForward:
    """The `forward` of a model whose inputs and outputs are cast.

    A deep copy of the model also copies this object, which then runs with the copy's weights.

    Args:
        forward: The model's own `forward`, as a bound method.
        inputs: The format to cast floating-point inputs to; None does not cast them.
        outputs: The format to cast floating-point outputs to.
    """

    def __init__(
        self, forward: Callable[..., Any], inputs: torch.dtype | None, outputs: torch.dtype
    ) -> None:
        self.__wrapped__ = forward
        self._inputs = inputs
        self._outputs = outputs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model's own `forward` between the casts."""
        if self._inputs is not None:
            args = tuple(cast_nested(arg, self._inputs) for arg in args)
            kwargs = {name: cast_nested(arg, self._inputs) for name, arg in kwargs.items()}
        return cast_nested(self.__wrapped__(*args, **kwargs), self._outputs)


def check_models(models: Sequence[nn.Module]) -> None:
    """Refuse models that are wrapped for data parallelism, and models with fp16 tensors.

    fp16 tensors are accepted if `_amp_state.allow_incoming_model_not_fp32` is set.

    Raises:
        RuntimeError: If a model is refused; the message names the wrapper or the tensor.
    """
    for model in models:
        _refuse_wrapper(model)
    if _amp_state.allow_incoming_model_not_fp32:
        return
    for model in models:
        for kind, tensors in (
            ("param", model.named_parameters()),
            ("buffer", model.named_buffers()),
        ):
            for name, tensor in tensors:
                if tensor.dtype == torch.float16:
                    warn_or_err(
                        f"Found {kind} {name} with type {tensor.type()}, expected "
                        "torch.cuda.FloatTensor. When using amp.initialize, you do not need to "
                        "call .half() on your model before passing it, no matter what optimization "
                        "level you choose; write model.float() before amp.initialize"
                    )


def cast_model(
    model: nn.Module, properties: Properties, cast_model_outputs: torch.dtype | None
) -> None:
    """Cast a model in place, and make its `forward` cast inputs and outputs.

    Args:
        model: The model to change.
        properties: The current options.
        cast_model_outputs: Format of the outputs; if None, fp32 for a model that is cast.
    """
    dtype = properties.cast_model_type
    if not dtype:
        if cast_model_outputs is not None:
            _patch_forward(model, None, cast_model_outputs)
        return
    if properties.keep_batchnorm_fp32:
        convert_network(model, dtype)
    else:
        for module in model.modules():
            convert_module(module, dtype)
    _patch_forward(model, dtype, cast_model_outputs or torch.float32)
    for module in model.modules():
        module.register_state_dict_post_hook(widen_state_dict)


def _patch_forward(model: nn.Module, inputs: torch.dtype | None, outputs: torch.dtype) -> None:
    forward = CastingForward(model.forward, inputs, outputs)
    model.forward = forward  # only on this instance


def _refuse_wrapper(model: nn.Module) -> None:
    names = {
        DistributedDataParallel: "torch.nn.parallel.DistributedDataParallel",
        DataParallel: "torch.nn.parallel.DataParallel",
        FullyShardedDataParallel: "torch.distributed.fsdp.FullyShardedDataParallel",
    }
    found = next((name for class_, name in names.items() if isinstance(model, class_)), None)
    if type(model).__module__.startswith("halfstep.apex.parallel"):
        found = f"apex.parallel.{type(model).__name__}"
    if found:
        raise RuntimeError(
            f"Incoming model is an instance of {found}. Parallel wrappers should only be applied "
            "to the model(s) AFTER the model(s) have been returned from amp.initialize; write "
            f"model, optimizer = amp.initialize(model, optimizer, ...), then {type(model).__name__}"
            "(model)"
        )
