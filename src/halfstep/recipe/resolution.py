"""What a device does with a recipe, as pure data: in units of its own, rehearsed, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from halfstep.kernels.hardware import How


@dataclass(frozen=True, slots=True)
class Support:
    """What becomes of one field of a recipe.

    Attributes:
        field: The field, with its value: "autocast fp16".
        how: Native, rehearsed or refused.
        reason: Why, in a few words.
    """

    field: str
    how: How
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.how} ({self.reason})"


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a device really does under a recipe.

    Attributes:
        recipe: The recipe's name.
        device: The device: "cpu", "cuda:0".
        parts: One for each field that asks something of the hardware.
    """

    recipe: str
    device: str
    parts: tuple[Support, ...]

    @property
    def how(self) -> How:
        """Refused if any part is, else rehearsed if any part is, else native."""
        found = {part.how for part in self.parts}
        return next((how for how in ("refused", "rehearsed") if how in found), "native")

    def those(self, how: How) -> list[str]:
        """Return the parts of one kind, as they are printed."""
        return [str(part) for part in self.parts if part.how == how]

    def __str__(self) -> str:
        said = "; ".join(map(str, self.parts)) or "asks nothing of the hardware"
        return f"{self.recipe} on {self.device}: {said}"
