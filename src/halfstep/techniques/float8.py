"""FP8 layers: linear and convolution layers whose products are those of FP8 tensor cores.

A layer changes its class for as long as the technique is open. The class intercepts the layer's own
product wherever its forward computes it, so that layers which derive from torch's
(weight-standardised, padded) are served too.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.nn.functional import pad
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.overrides import TorchFunctionMode

from halfstep.kernels.float8 import Geometry, Role, Scales, float8_product
from halfstep.layers.swap import mix_in, take_out
from halfstep.techniques.base import Stage, Technique, no_own_formats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.optim import Optimizer

    from halfstep.techniques.base import OwnFormats

HISTORY = 16
"""Steps whose largest values decide a delayed scale."""

_noting = threading.Lock()
"""Replicas of a model, in threads and on GPUs of their own, note their values in one place."""

MULTIPLE = 16
"""FP8 tensor cores take matrices whose widths are multiples of this (cuBLASLt, section 3.1.3)."""

_CONVOLUTIONS: dict[Callable[..., Any], int] = {
    torch.conv1d: 1,
    torch.conv2d: 2,
    torch.conv3d: 3,
}


class Float8Layers(Technique):
    """Multiply in FP8 in every linear and convolution layer whose widths tensor cores take.

    Args:
        scaling: "dynamic" scales a tensor by its own largest absolute value; "delayed" by the
            largest of the last `HISTORY` steps, by its own as long as there are none.
        own_formats: Gives the layers of a model that have a format of their own, which they keep.
    """

    stage = Stage.LAYERS
    replaces_layers = True

    def __init__(
        self, scaling: Literal["dynamic", "delayed"], *, own_formats: OwnFormats = no_own_formats
    ) -> None:
        self._scaling = scaling
        self._own_formats = own_formats
        self._layers: list[nn.Module] = []

    def prepare(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Change the layers."""
        del optimizers
        layers = {module: None for model in models for module in model.modules()}
        kept = {module for model in models for module in self._own_formats(model)}
        for layer in (layer for layer in layers if is_taken(layer) and layer not in kept):
            scales = DelayedScales() if self._scaling == "delayed" else DynamicScales()
            mix_in(layer, Float8)
            layer._float8_scales = scales  # type: ignore[assignment]  # noqa: SLF001  # the subclass's
            self._layers.append(layer)

    def after_step(self, optimizer: Optimizer) -> None:
        """Let the values that this step has seen decide the scales of the next."""
        del optimizer
        for scales in self._histories():
            scales.advance()

    def state_dict(self) -> dict[str, Any]:
        """Return the histories of delayed scales, layer by layer."""
        return {"histories": [scales.state() for scales in self._histories()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them over."""
        for scales, saved in zip(self._histories(), state["histories"], strict=True):
            scales.load(saved)

    def close(self) -> None:
        """Give the layers their own class back."""
        for layer in self._layers:
            take_out(layer)
            del layer._float8_scales  # noqa: SLF001
        self._layers.clear()

    def _histories(self) -> list[DelayedScales]:
        found = [layer._float8_scales for layer in self._layers]  # noqa: SLF001
        return [scales for scales in found if isinstance(scales, DelayedScales)]


def is_taken(layer: nn.Module) -> bool:
    """Tell whether FP8 tensor cores could compute a layer."""
    if isinstance(layer, NonDynamicallyQuantizableLinear):
        return False  # attention's last projection, of which only the weights are used
    if isinstance(layer, nn.Linear):
        widths = [layer.in_features, layer.out_features]
    elif isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        widths = [layer.in_channels // layer.groups, layer.out_channels // layer.groups]
    else:
        return False
    return all(width % MULTIPLE == 0 for width in widths)


class DynamicScales:
    """Each tensor decides its own scale."""

    def largest(self, role: Role, value: torch.Tensor, *, training: bool) -> torch.Tensor:
        """Return the largest absolute value of `value`."""
        del role, training
        return _largest(value)


class DelayedScales:
    """The largest values of past steps decide, so that no tensor is read before it is rounded.

    They do not change within a step: what is computed again for its gradients is the same again.
    """

    def __init__(self) -> None:
        self._past: dict[str, torch.Tensor] = {}
        self._seen: dict[str, torch.Tensor] = {}

    def largest(self, role: Role, value: torch.Tensor, *, training: bool) -> torch.Tensor:
        """Return the largest value of the past, or of `value` where there is no past."""
        now = _largest(value)
        if training:
            with _noting:
                seen = self._seen.get(role)
                self._seen[role] = now if seen is None else torch.maximum(seen, now.to(seen.device))
        past = self._past.get(role)
        if past is None:
            return now
        known = past.max().to(now.device)
        return torch.where(known > 0, known, now)

    def advance(self) -> None:
        """End a step. A value that is not finite would end all scaling, so it leaves no trace."""
        for role, seen in self._seen.items():
            past = self._past.get(role)
            if past is None:
                past = seen.new_zeros(HISTORY)
            seen = seen.to(past.device)  # noqa: PLW2901  (a replica's, which was the first)
            newest = torch.where(seen.isfinite(), seen, past[0])
            self._past[role] = torch.cat([newest[None], past[:-1]])
        self._seen.clear()

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return past and present as plain data."""
        return {"past": dict(self._past), "seen": dict(self._seen)}

    def load(self, state: dict[str, dict[str, torch.Tensor]]) -> None:
        """Take over what `state` returned."""
        self._past, self._seen = dict(state["past"]), dict(state["seen"])


@contextmanager
def scales_kept(model: nn.Module) -> Iterator[None]:
    """Let what runs inside leave no trace in the delayed scales of `model`."""
    found = [getattr(module, "_float8_scales", None) for module in model.modules()]
    before = [(scales, scales.state()) for scales in found if isinstance(scales, DelayedScales)]
    try:
        yield
    finally:
        for scales, state in before:
            scales.load(state)


def _largest(value: torch.Tensor) -> torch.Tensor:
    if not value.numel():
        return value.new_zeros((), dtype=torch.float32)
    return value.detach().abs().amax().float()


class Float8(nn.Module):
    """Mixed into a layer: its product is computed in FP8."""

    _float8_scales: Scales

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer's own forward, its product in FP8."""
        with _Intercepted(self._float8_scales):
            return super().forward(*args, **kwargs)


class _Intercepted(TorchFunctionMode):
    """Computes what a layer's forward calls: `linear`, or a convolution."""

    def __init__(self, scales: Scales) -> None:
        super().__init__()
        self._scales = scales

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if func is nn.functional.linear:
            return self._linear(*args, **kwargs)
        if func in _CONVOLUTIONS:
            return self._convolution(_CONVOLUTIONS[func], *args, **kwargs)
        return func(*args, **kwargs)

    def _linear(
        self, value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return _computed(value, weight, bias, self._scales)

    def _convolution(
        self,
        rank: int,
        value: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: int | Sequence[int] = 1,
        padding: str | int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> torch.Tensor:
        steps, gaps = _each(stride, rank), _each(dilation, rank)
        if padding == "same":
            totals = [gap * (size - 1) for gap, size in zip(gaps, weight.shape[2:], strict=True)]
            # The odd pixel goes behind, as in torch.
            widths = [side for t in reversed(totals) for side in (t // 2, t - t // 2)]
            value, padding = pad(value, widths), 0
        elif isinstance(padding, str):  # "valid"
            padding = 0
        batched = value.dim() == rank + 2
        geometry = Geometry(steps, _each(padding, rank), gaps, groups)
        result = _computed(value if batched else value[None], weight, bias, self._scales, geometry)
        return result if batched else result[0]


def _computed(
    value: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    scales: Scales,
    geometry: Geometry | None = None,
) -> torch.Tensor:
    """Cast to autocast's format, as the product would have been, then compute in FP8."""
    device = value.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        value, weight = value.to(dtype), weight.to(dtype)
    with torch.autocast(device, enabled=False):
        return float8_product(value, weight, bias, scales, geometry)


def _each(value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    numbers = (value,) if isinstance(value, int) else tuple(value)
    return numbers * rank if len(numbers) == 1 else numbers
