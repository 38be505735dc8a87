"""How a device runs each part of a recipe, as pure data: native, rehearsed or refused."""

from __future__ import annotations

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
class Resolution:
    """How a device runs a recipe.

    Attributes:
        recipe: The recipe's name.
        device: The device: "cpu", "cuda:0".
        parts: One entry for each field that depends on the hardware.
    """

    recipe: str
    device: str
    parts: tuple[Support, ...]

    @property
    def how(self) -> How:
        """The worst case of all parts: "refused", else "rehearsed", else "native"."""
        found = {part.how for part in self.parts}
        return next((how for how in ("refused", "rehearsed") if how in found), "native")

    def those(self, how: How) -> list[str]:
        """Return the text of the parts that the device runs in the way `how`."""
        return [str(part) for part in self.parts if part.how == how]

    def __str__(self) -> str:
        said = "; ".join(map(str, self.parts)) or "asks nothing of the hardware"
        return f"{self.recipe} on {self.device}: {said}"
