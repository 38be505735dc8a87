"""How a device runs each part of a recipe, as pure data: native, rehearsed or refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from halfstep.kernels.hardware import How


@dataclass(frozen=True, slots=True)
class Support:
    """How a device runs one field of a recipe.

    Attributes:
        field: The field with its value: "autocast fp16".
        how: Native, rehearsed or refused.
        reason: The reason, in a few words.
    """

    field: str
    how: How
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.how} ({self.reason})"


@dataclass(frozen=True, slots=True)
class LayerSupport:
    """How a device computes the products of a layer.

    Attributes:
        name: The layer's name in its model.
        how: "native", "rehearsed" or "left out".
        format: The format of the products, such as "fp8-e4m3".
        reason: Why the layer is left out, or from how many samples on it computes natively; "" if
            there is nothing to say.
    """

    name: str
    how: str
    format: str
    reason: str


@dataclass(frozen=True, slots=True)
class Resolution:
    """How a device runs a recipe.

    Attributes:
        recipe: The recipe's name.
        device: The device: "cpu", "cuda:0".
        parts: One entry for each field that depends on the hardware.
        layers: One entry for each layer of an engine's models whose products a technique of the
            recipe computes, or might have; empty for a recipe alone.
    """

    recipe: str
    device: str
    parts: tuple[Support, ...]
    layers: tuple[LayerSupport, ...] = ()

    @property
    def how(self) -> How:
        """The worst case of all parts: "refused", else "rehearsed", else "native"."""
        found = {part.how for part in self.parts}
        return next((how for how in ("refused", "rehearsed") if how in found), "native")

    def those(self, how: How) -> list[str]:
        """Return the text of the parts that the device runs in the way `how`."""
        return [str(part) for part in self.parts if part.how == how]

    def in_layers(self) -> str:
        """Return in how many layers which format is used; "" if there are no `layers`.

        ```
        42 of 54 layers rehearsed in fp8-e4m3, 12 in bf16: widths not multiples of 16
        ```
        """
        groups = Counter((layer.how, layer.format, layer.reason) for layer in self.layers)
        said: list[str] = []
        for (how, format_, reason), count in groups.most_common():
            of = f" of {len(self.layers)} layers" if not said else ""
            way = f" {how}" if how != "left out" else ""
            said.append(f"{count}{of}{way} in {format_}{f': {reason}' if reason else ''}")
        return ", ".join(said)

    def __str__(self) -> str:
        said = [*map(str, self.parts)] or ["asks nothing of the hardware"]
        layers = [self.in_layers()] if self.layers else []
        return f"{self.recipe} on {self.device}: {'; '.join([*said, *layers])}"
