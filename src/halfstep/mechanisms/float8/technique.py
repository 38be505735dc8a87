"""FP8 layers: linear and convolution layers that compute their products as FP8 tensor cores do.

The technique changes the class of a layer until it is closed. The new class intercepts the calls of
`linear` and of convolutions in the layer's own forward. So it also works for subclasses of torch's
layers, such as weight-standardised or padded convolutions.
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

from halfstep.layers.swap import mix_in, take_out
from halfstep.mechanisms.float8.kernels import Geometry, Role, Scales, float8_product
from halfstep.mechanisms.technique import Stage, Technique, no_own_formats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.optim import Optimizer

    from halfstep.mechanisms.technique import OwnFormats

HISTORY = 16
"""The number of past steps whose largest values determine a delayed scale."""

_noting = threading.Lock()
"""A lock for `DelayedScales`: the replicas of a DataParallel model share it between threads."""

MULTIPLE = 16
"""FP8 tensor cores need matrix widths that are multiples of this (cuBLASLt, section 3.1.3)."""

_CONVOLUTIONS: dict[Callable[..., Any], int] = {
    torch.conv1d: 1,
    torch.conv2d: 2,
    torch.conv3d: 3,
}


class Float8Layers(Technique):
    """Makes linear and convolution layers multiply in FP8, if their widths suit tensor cores.

    Args:
        scaling: The source of a tensor's scale. "dynamic": its own largest absolute value.
            "delayed": the largest absolute value of the last `HISTORY` steps, or in the first step
            its own.
        own_formats: Returns the modules of a model that have a format of their own, and so do not
            become FP8 layers.
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
        """Change the class of the layers, and create their scales."""
        del optimizers
        layers = {module: None for model in models for module in model.modules()}
        kept = {module for model in models for module in self._own_formats(model)}
        for layer in (layer for layer in layers if is_taken(layer) and layer not in kept):
            scales = DelayedScales() if self._scaling == "delayed" else DynamicScales()
            mix_in(layer, Float8)
            layer._float8_scales = scales  # type: ignore[assignment]  # noqa: SLF001  # the subclass's
            self._layers.append(layer)

    def after_step(self, optimizer: Optimizer) -> None:
        """Add the largest values of this step to the histories of delayed scales."""
        del optimizer
        for scales in self._histories():
            scales.advance()

    def state_dict(self) -> dict[str, Any]:
        """Return the histories of delayed scales, one for each layer."""
        return {"histories": [scales.state() for scales in self._histories()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the histories that `state_dict` returned."""
        for scales, saved in zip(self._histories(), state["histories"], strict=True):
            scales.load(saved)

    def close(self) -> None:
        """Restore the original class of each layer."""
        for layer in self._layers:
            take_out(layer)
            del layer._float8_scales  # noqa: SLF001
        self._layers.clear()

    def _histories(self) -> list[DelayedScales]:
        found = [layer._float8_scales for layer in self._layers]  # noqa: SLF001
        return [scales for scales in found if isinstance(scales, DelayedScales)]


def is_taken(layer: nn.Module) -> bool:
    """Tell whether the type and the widths of a layer suit FP8 tensor cores."""
    if isinstance(layer, NonDynamicallyQuantizableLinear):
        return False  # the output projection of attention: its forward is never called
    if isinstance(layer, nn.Linear):
        widths = [layer.in_features, layer.out_features]
    elif isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        widths = [layer.in_channels // layer.groups, layer.out_channels // layer.groups]
    else:
        return False
    return all(width % MULTIPLE == 0 for width in widths)


class DynamicScales:
    """Scales each tensor by its own largest absolute value."""

    def largest(self, role: Role, value: torch.Tensor, *, training: bool) -> torch.Tensor:
        """Return the largest absolute value of `value`."""
        del role, training
        return _largest(value)


class DelayedScales:
    """Scales a tensor by the largest values of past steps, so that rounding needs no extra read.

    The scales do not change within a step, so activation checkpointing recomputes the same values.
    """

    def __init__(self) -> None:
        self._past: dict[str, torch.Tensor] = {}
        self._seen: dict[str, torch.Tensor] = {}

    def largest(self, role: Role, value: torch.Tensor, *, training: bool) -> torch.Tensor:
        """Return the largest absolute value of past steps, or of `value` if there are none."""
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
        """End a step: move its largest values into the history.

        An inf or NaN would make every later scale useless, so the newest past value replaces it.
        """
        for role, seen in self._seen.items():
            past = self._past.get(role)
            if past is None:
                past = seen.new_zeros(HISTORY)
            seen = seen.to(past.device)  # noqa: PLW2901  (a replica's, which was the first)
            newest = torch.where(seen.isfinite(), seen, past[0])
            self._past[role] = torch.cat([newest[None], past[:-1]])
        self._seen.clear()

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return the values of past steps and of the present step, as plain data."""
        return {"past": dict(self._past), "seen": dict(self._seen)}

    def load(self, state: dict[str, dict[str, torch.Tensor]]) -> None:
        """Load the result of `state`."""
        self._past, self._seen = dict(state["past"]), dict(state["seen"])


@contextmanager
def scales_kept(model: nn.Module) -> Iterator[None]:
    """Restore the delayed scales of `model` on exit, so that code in this context has no effect."""
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
    """Mixin for a layer, which makes the layer compute its products in FP8."""

    _float8_scales: Scales

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer's own forward, with its products in FP8."""
        with _Intercepted(self._float8_scales):
            return super().forward(*args, **kwargs)


class _Intercepted(TorchFunctionMode):
    """Replaces calls of `linear` and of convolutions by FP8 products."""

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
            # If the total is odd, the extra element is at the end, as in torch.
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
    """Compute a product in FP8; under autocast, first cast the operands to autocast's format."""
    device = value.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        value, weight = value.to(dtype), weight.to(dtype)
    with torch.autocast(device, enabled=False):
        return float8_product(value, weight, bias, scales, geometry)


def _each(value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    numbers = (value,) if isinstance(value, int) else tuple(value)
    return numbers * rank if len(numbers) == 1 else numbers
