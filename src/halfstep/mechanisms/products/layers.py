"""Linear and convolution layers whose products are computed on quantised tensors.

The technique changes the class of a layer until it is closed. If the products are emulated, the new
class intercepts the calls of `linear` and of convolutions in the layer's own forward. So it also
works for subclasses of torch's layers, such as weight-standardised or padded convolutions. Native
products are those of `native_layers.py`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import pad
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.overrides import TorchFunctionMode

from halfstep.layers.swap import mix_in, take_out
from halfstep.mechanisms.products.native_layers import MultipliesNatively, NativeComputes
from halfstep.mechanisms.products.product import Geometry, product
from halfstep.mechanisms.technique import LayerFormat, Stage, Technique, no_own_formats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch.optim import Optimizer

    from halfstep.mechanisms.products.native import WeightOperands
    from halfstep.mechanisms.products.quantised import Native, Quantiser
    from halfstep.mechanisms.technique import OwnFormats

_CONVOLUTIONS: dict[Callable[..., Any], int] = {
    torch.conv1d: 1,
    torch.conv2d: 2,
    torch.conv3d: 3,
}


class ProductLayers(Technique):
    """Makes linear and convolution layers multiply quantised tensors.

    A format derives its technique from this class, with a `quantiser` for each layer.

    Args:
        own_formats: Returns the modules of a model that have a format of their own, and so do not
            become such layers.
        dtype: The dtype that native products round a weight to first; None for the weight's own.
    """

    stage = Stage.LAYERS
    replaces_layers = True

    multiple: int
    """The widths of a layer must be multiples of this number, for the hardware's tensor cores."""

    keeps_ends = False
    """Whether the first and the last layer of a model stay as they are."""

    def __init__(
        self, *, own_formats: OwnFormats = no_own_formats, dtype: torch.dtype | None = None
    ) -> None:
        self._own_formats = own_formats
        self._dtype = dtype
        self._operands: list[WeightOperands] = []
        self._formats: dict[nn.Module, LayerFormat] = {}
        self._changed: list[nn.Module] = []

    def quantiser(self, layer: nn.Module) -> Quantiser:
        """Return what quantises the tensors of a layer."""
        raise NotImplementedError

    def native(self, layer: nn.Module) -> Native | None:
        """Return the product of the hardware that `layer` is on; None to emulate it."""
        del layer
        return None

    def native_reason(self, layer: nn.Module) -> str:
        """Return what a report says of a native layer: from how many samples on it is native."""
        del layer
        return ""

    def left_out(self, layer: nn.Module) -> str:
        """Return why a linear or convolution layer stays as it is; "" if it is taken."""
        fits = all(width % self.multiple == 0 for width in widths(layer))
        return "" if fits else f"widths not multiples of {self.multiple}"

    def prepare(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Change the class of the layers."""
        del optimizers
        left_out = self.left_out_of(models)
        for layer in _layers(models):
            if layer in left_out:
                self._formats[layer] = left_out[layer]
            else:
                self._change(layer)
                self._changed.append(layer)

    def left_out_of(self, models: Sequence[nn.Module]) -> dict[nn.Module, LayerFormat]:
        """Return the linear and convolution layers that stay as they are, with their formats."""
        own = {
            module: each for model in models for module, each in self._own_formats(model).items()
        }
        ends = {end for model in models for end in self._ends(model)}
        found = {}
        for layer in _layers(models):
            reason = "first and last layer" if layer in ends else self.left_out(layer)
            reason = "exceptions of the recipe" if layer in own else reason
            if reason:
                found[layer] = LayerFormat("left out", own.get(layer), reason)
        return found

    def _change(self, layer: nn.Module) -> None:
        quantiser, native = self.quantiser(layer), self.native(layer)
        format_ = quantiser.format_of("input")
        if native is None:
            mix_in(layer, Quantising)
            layer._computes = quantiser  # type: ignore[assignment]  # noqa: SLF001  # the subclass's
            self._formats[layer] = LayerFormat("rehearsed", format_)
            return
        computes = NativeComputes.of(layer, native, self._dtype)
        mix_in(layer, MultipliesNatively)
        layer._computes = computes  # type: ignore[assignment]  # noqa: SLF001  # the subclass's
        self._operands += [computes.operands] if computes.operands else []
        self._formats[layer] = LayerFormat("native", format_, self.native_reason(layer))

    @property
    def enters_forward(self) -> bool:
        """Whether there are native layers, whose weights are quantised before a forward pass."""
        return bool(self._operands)

    def forward(self, device: torch.device) -> AbstractContextManager[Any]:
        """Quantise the weights of native layers that have changed since."""
        del device
        for operands in self._operands:
            operands.refresh()
        return nullcontext()

    def after_step(self, optimizer: Optimizer) -> None:
        """Let the weights of `optimizer` be quantised again, even if it wrote to `weight.data`."""
        if self._operands:
            stepped = {id(param) for group in optimizer.param_groups for param in group["params"]}
            for operands in self._operands:
                if id(operands.weight) in stepped:
                    operands.forget()

    def _ends(self, model: nn.Module) -> list[nn.Module]:
        """Return the first and the last layer of a model, if they stay as they are."""
        layers = [module for module in model.modules() if widths(module)]
        return [*layers[:1], *layers[-1:]] if self.keeps_ends else []

    def layer_formats(self) -> Mapping[nn.Module, LayerFormat]:
        """Return the format of each linear and convolution layer."""
        return self._formats

    def close(self) -> None:
        """Restore the original class of each layer."""
        for layer in self._changed:
            take_out(layer)
            del layer._computes  # noqa: SLF001
        self._changed.clear()
        self._operands.clear()


def widths(layer: nn.Module) -> tuple[int, ...]:
    """Return the widths of a layer's matrix product; () for any other layer."""
    if isinstance(layer, NonDynamicallyQuantizableLinear):
        return ()  # the output projection of attention: its forward is never called
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return layer.in_channels // layer.groups, layer.out_channels // layer.groups
    return ()


def _layers(models: Sequence[nn.Module]) -> list[nn.Module]:
    """Return the linear and convolution layers of models, each once."""
    modules = {module: None for model in models for module in model.modules()}
    return [module for module in modules if widths(module)]


def layers_of(model: nn.Module) -> Iterator[tuple[str, nn.Module, tuple[int, int]]]:
    """Yield the linear and convolution layers of a model: name, layer, and widths."""
    for name, layer in model.named_modules():
        if shape := widths(layer):
            yield name, layer, (shape[0], shape[1])


class Quantising(nn.Module):
    """Mixin for a layer, which makes the layer multiply quantised tensors."""

    _computes: Quantiser

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer's own forward, with its products computed on quantised tensors."""
        with _Intercepted(self._computes):
            return super().forward(*args, **kwargs)


class _Intercepted(TorchFunctionMode):
    """Replaces calls of `linear` and of convolutions by products of quantised tensors."""

    def __init__(self, quantiser: Quantiser) -> None:
        super().__init__()
        self._quantiser = quantiser

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
        return _computed(value, weight, bias, self._quantiser)

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
        result = _computed(
            value if batched else value[None], weight, bias, self._quantiser, geometry
        )
        return result if batched else result[0]


def _computed(
    value: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    quantiser: Quantiser,
    geometry: Geometry | None = None,
) -> torch.Tensor:
    """Compute a product; under autocast, first cast the operands to autocast's format."""
    device = value.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        value, weight = value.to(dtype), weight.to(dtype)
    with torch.autocast(device, enabled=False):
        return product(value, weight, bias, quantiser, geometry)


def _each(value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    numbers = (value,) if isinstance(value, int) else tuple(value)
    return numbers * rank if len(numbers) == 1 else numbers
