"""What the fields of quantised products have in common: of them, a recipe sets at most one."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from halfstep.mechanisms.part import Part

if TYPE_CHECKING:
    import torch
    from torch import nn

    from halfstep.kernels.hardware import Means
    from halfstep.mechanisms.part import ExplainedLayer, Samples, Whole


class QuantisedProducts(Part, abstract=True):
    """A field that makes linear and convolution layers multiply quantised tensors.

    Attributes:
        multiple: The widths of layers that are changed must be multiples of this number.
    """

    traceable = False
    multiple: ClassVar[int]

    @property
    def name(self) -> str:
        """The name of the format of products in the forward pass."""
        raise NotImplementedError

    def contradiction(self, whole: Whole) -> str | None:
        """Refuse another format of quantised products, and another `accumulator`."""
        for other in whole.parts:
            if isinstance(other, QuantisedProducts) and other.place > self.place:
                return (
                    f"{self.field}={self.value!r} and {other.field}={other.value!r} both decide "
                    "how layers multiply; leave one of them out"
                )
            if other.field == "accumulator":
                return (
                    f"{self.field}={self.value!r} accumulates in fp32, but accumulator is "
                    f"{other.value!r}; leave one of them out"
                )
        return None

    def product_format(self) -> tuple[int, str] | None:
        """Return the format, which overrides those of `params` and `autocast`."""
        return 2, self.name

    def means(self, device: torch.device) -> Means | None:
        """Return "rehearsed", for every device."""
        from halfstep.kernels.hardware import Means

        del device
        return Means(
            "rehearsed",
            f"fp32 kernels on {self.family} values; layers whose widths are not multiples of "
            f"{self.multiple} are left out",
        )

    def explained(
        self, model: nn.Module, whole: Whole, device: str, samples: Samples = None
    ) -> list[ExplainedLayer] | None:
        """Return which layers are rehearsed, on every device, and why the others are left out."""
        from halfstep.mechanisms.part import ExplainedLayer
        from halfstep.mechanisms.products.layers import ProductLayers, layers_of

        del device
        (technique,) = self.techniques(whole, seed=0)
        assert isinstance(technique, ProductLayers)
        left_out = technique.left_out_of([model])
        return [
            ExplainedLayer(
                name,
                *shape,
                "left out" if layer in left_out else "rehearsed",
                left_out[layer].reason if layer in left_out else "",
                samples=samples if isinstance(samples, int) else (samples or {}).get(name),
            )
            for name, layer, shape in layers_of(model)
        ]

    @property
    def family(self) -> str:
        """The name of the format in the reason that `means` returns."""
        return self.name
