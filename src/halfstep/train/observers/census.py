"""Counts the share of the FLOPs in each number format, by intercepting dispatched operators.

A model can deviate from its recipe: a layer may switch autocast off, be kept in fp32 because it is
a norm layer, or have widths that FP8 does not support. So each product is counted as it runs.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from halfstep.kernels.observed import format_of_products

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn

    from halfstep.recipe.resolution import LayerSupport


def _of_scaled_mm(left: torch.Tensor, right: torch.Tensor, *_: Any, **__: Any) -> int:
    return 2 * left.shape[0] * left.shape[1] * right.shape[1]


# torch's counter does not know the operator of `torch.nn.functional.scaled_mm`.
_FORMULAS = {torch.ops.aten._scaled_mm_v2: _of_scaled_mm, **flop_registry}  # noqa: SLF001


class Census(TorchDispatchMode):
    """A context that counts the FLOPs of a model's products, in forward and backward passes.

    Args:
        model: The model.
        layers: The layers whose format a technique decided, with its reasons.

    Attributes:
        flops: FLOPs of forward and backward, by format, such as "fp16".
        by_layer: FLOPs of the forward pass only, by the innermost layer's name and the format.
    """

    def __init__(self, model: nn.Module, layers: Iterable[LayerSupport] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.flops: Counter[str] = Counter()
        self.by_layer: Counter[tuple[str, str]] = Counter()
        self._names: Mapping[nn.Module, str] = {m: n for n, m in model.named_modules()}
        self._layers = {layer.name: layer for layer in layers}
        self._running: list[str] = []
        self._hooks: list[Any] = []

    def shares(self) -> dict[str, float]:
        """Return each format's share of all FLOPs, 0 to 1, the largest first."""
        total = sum(self.flops.values())
        return {name: count / total for name, count in self.flops.most_common()} if total else {}

    def exceptions(self, expected: str) -> dict[str, str]:
        """Return the layers that computed in another format than `expected`, with a reason."""
        modules = {name: module for module, name in self._names.items()}
        return {
            name: f"{format_}: {self._reason(name, modules.get(name), format_)}"
            for name, format_ in sorted(self.by_layer)
            if format_ != expected
        }

    def _reason(self, name: str, layer: nn.Module | None, format_: str) -> str:
        if name in self._layers:
            return self._layers[name].reason
        if self._layers:
            return f"none of the {len(self._layers)} layers whose format the recipe decides"
        weight = getattr(layer, "weight", None)
        if isinstance(weight, torch.Tensor) and format_ == "fp32" and weight.dtype == torch.float32:
            return "autocast is off where it computes, or the recipe keeps the layer in fp32"
        return f"its inputs are {format_}"

    def __enter__(self) -> Self:
        for module, name in self._names.items():
            self._hooks += [
                module.register_forward_pre_hook(partial(self._enter, name)),
                module.register_forward_hook(self._leave, always_call=True),
            ]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        count = _FORMULAS.get(func._overloadpacket)  # noqa: SLF001  # as torch's own counter
        if count is not None:
            factors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
            format_ = format_of_products(factors[-1])
            flops = count(*args, **kwargs, out_val=out)
            self.flops[format_] += flops
            if self._running and torch._C._current_graph_task_id() == -1:  # noqa: SLF001
                self.by_layer[self._running[-1], format_] += flops
        return out

    def _enter(self, name: str, *_: Any) -> None:
        self._running.append(name)

    def _leave(self, *_: Any) -> None:
        self._running.pop()
