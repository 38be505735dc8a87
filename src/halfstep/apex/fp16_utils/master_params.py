"""Creates fp32 masters without `amp`; copies gradients to them and values from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

if TYPE_CHECKING:
    from collections.abc import Sequence

clip_grad_norm = clip_grad_norm_


def prep_param_lists(
    model: nn.Module, flat_master: bool = False
) -> tuple[list[nn.Parameter], list[torch.Tensor]]:
    """Return the trainable parameters of a model, and fp32 masters of them.

    Args:
        model: A model in any format.
        flat_master: Whether to return one flat master parameter, with a gradient of zeros.

    Raises:
        TypeError: If `flat_master` is set and the parameters have several formats.
    """
    params = [param for param in model.parameters() if param.requires_grad]
    if not flat_master:
        return params, [param.detach().clone().float().requires_grad_() for param in params]
    dtypes = {str(param.dtype) for param in params}
    if len(dtypes) > 1:
        raise TypeError(
            "prep_param_lists: model may contain a mixture of parameters of different types: "
            f"{', '.join(sorted(dtypes))}. Use flat_master=False, or use FP16_Optimizer."
        )
    master = nn.Parameter(_flat([param.detach() for param in params]).float())
    master.grad = torch.zeros_like(master)
    return params, [master]


def model_grads_to_master_grads(
    model_params: Sequence[torch.Tensor],
    master_params: Sequence[torch.Tensor],
    flat_master: bool = False,
) -> None:
    """Copy the gradients of the model to the masters, in the masters' format.

    Args:
        model_params: The parameters that `prep_param_lists` returned.
        master_params: The masters that `prep_param_lists` returned.
        flat_master: The value that was passed to `prep_param_lists`.
    """
    if flat_master:
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model_params]
        master_params[0].grad = _flat(grads).to(master_params[0].dtype)
        return
    for param, master in zip(model_params, master_params, strict=True):
        master.grad = (
            None if param.grad is None else param.grad.detach().to(master.dtype, copy=True)
        )


def master_params_to_model_params(
    model_params: Sequence[torch.Tensor],
    master_params: Sequence[torch.Tensor],
    flat_master: bool = False,
) -> None:
    """Copy the masters to the model's parameters, in the parameters' format.

    Args:
        model_params: The parameters that `prep_param_lists` returned.
        master_params: The masters that `prep_param_lists` returned.
        flat_master: The value that was passed to `prep_param_lists`.
    """
    masters = list(master_params)
    if flat_master:
        parts = masters[0].split([param.numel() for param in model_params])
        masters = [part.view_as(p) for part, p in zip(parts, model_params, strict=True)]
    with torch.no_grad():
        for param, master in zip(model_params, masters, strict=True):
            param.copy_(master)


def to_python_float(t: Any) -> float:
    """Return the value of a tensor with one element, or the first number of a sequence."""
    return float(t.item() if hasattr(t, "item") else t[0])


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
