"""The seam of a recipe: one field, with everything that is true of it.

A part is a field that is set. It holds the field's value and answers for it: which values there
are, what contradicts it, what a device makes of it, how its technique is built, and in which ways
of training it cannot be had. Every answer is "nothing" by default; a field overrides those in which
it differs. `Recipe` asks its parts in turn and knows none of them by name.

A class that derives from `Part` is a field of every recipe from then on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self

from halfstep.errors import closest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch
    from torch import nn

    from halfstep.kernels.hardware import Means
    from halfstep.loss_scale import LossScale
    from halfstep.techniques import Technique

Use = Literal[
    "fully_shard",
    "data_parallel",
    "replica_threads",
    "zero_optimizer",
    "closure",
    "lazy_parameters",
    "script_modules",
]
"""What some fields exclude: FSDP2, the engine's DataParallel, torch's own DataParallel, a
`ZeroRedundancyOptimizer`, an optimizer that evaluates the loss by a closure, parameters without
values yet, and modules that TorchScript has compiled."""

PARTS: dict[str, type[Part]] = {}
"""Every field that a recipe may set, by name."""


class Whole(Protocol):
    """What a part may know of the recipe that it belongs to."""

    def get(self, field: str) -> Any:
        """Return the value of a field; None where it is not set."""

    def own_formats(self, model: nn.Module) -> dict[nn.Module, str]:
        """Return modules of `model` whose parameters have a format of their own, and which."""


@dataclass(frozen=True)
class Part:
    """One field of a recipe that is set.

    Attributes:
        value: What it is set to.
        field: Its name in a recipe.
        place: Where it stands when a recipe is printed; where two parts answer the same question,
            the later one's answer holds.
        purpose: What it decides, as one sentence.
        allowed: Its values, each with what it means.
    """

    value: Any

    field: ClassVar[str]
    place: ClassVar[int]
    purpose: ClassVar[str]
    allowed: ClassVar[Mapping[Any, str]]

    traceable: ClassVar[bool] = True
    """Whether a GPU runs the operators that a step on a CPU calls, so that these tell its cost."""

    former_field: ClassVar[str | None] = None
    """What the field was called before; recipes that were written then are still read."""

    def __init_subclass__(cls) -> None:
        PARTS[cls.field] = cls

    @classmethod
    def parse(cls, given: Any) -> Self:
        """Read a value as users write it.

        Raises:
            ValueError: If there is no such value; the message lists those that there are.
        """
        if given not in cls.allowed:
            options = ", ".join(map(repr, cls.allowed))
            near = closest(given, map(str, cls.allowed))
            raise ValueError(f"recipe field {cls.field} is {given!r}; allowed: {options}{near}")
        return cls(given)

    @property
    def plain(self) -> Any:
        """The value as plain data for JSON and YAML."""
        return self.value

    def __str__(self) -> str:
        return f"{self.field} {self.value}"

    def merged(self, other: Self) -> Self | None:
        """Compose with the same field of another recipe; None where the two disagree."""
        return self if self == other else None

    def contradiction(self, whole: Whole) -> str | None:
        """Say why this part cannot stand beside the other parts, with what to write instead."""
        del whole
        return None

    def product_format(self) -> tuple[int, str] | None:
        """Return the format that products of the forward pass compute in, with its precedence."""
        return None

    def forward_format(self) -> str | None:
        """Return the format of the autocast region that a loop has to enter."""
        return None

    def formats(self) -> Iterable[str]:
        """Return every format that something is kept or computed in because of this part."""
        return ()

    def means(self, device: torch.device) -> Means | None:
        """Return how `device` carries the part out; None where it asks nothing of the hardware.

        Raises:
            ValueError: If there is no such device.
        """
        del device
        return None

    def techniques(self, whole: Whole, *, seed: int) -> Iterable[Technique]:
        """Build what carries the part out; this is where torch is first imported.

        Args:
            whole: The recipe.
            seed: Seed of what a technique draws at random.
        """
        del whole, seed
        return ()

    def own_formats(self, model: nn.Module) -> Mapping[nn.Module, str]:
        """Return modules of `model` whose parameters have a format of their own, and which."""
        del model
        return {}

    def gradient_format(self) -> str | None:
        """Return the format in which `.grad` of half parameters is kept."""
        return None

    def optimizer_format(self) -> str | None:
        """Return the format in which the optimizer computes its updates."""
        return None

    def keeps_small_updates(self) -> bool:
        """Tell whether updates of less than half an ulp arrive in the long run."""
        return False

    def reduction(self) -> str | None:
        """Return the format in which processes sum gradients; "own" for that of each gradient."""
        return None

    def sharding(self, whole: Whole) -> Mapping[str, str]:
        """Return formats under FSDP2: of "compute", "buffers", "reduce" and "outputs"."""
        del whole
        return {}

    def scaling(self) -> LossScale | None:
        """Return the `LossScale` that the loss is multiplied by, or None."""
        return None

    def refuses(self, use: Use, whole: Whole) -> str | None:
        """Say why a step under this part cannot be had in a way of training, or nothing."""
        del use, whole
        return None


def needs_half_params(part: Part, whole: Whole) -> str | None:
    """Refuse a part that says something of half parameters where a recipe has none."""
    params = whole.get("params")
    if params not in (None, "fp32"):
        return None
    said = repr(params) if params else "not set"
    return (
        f"{part.field}={part.value!r} needs parameters in a half format, but params is {said}; "
        f"write params='fp16' or leave {part.field} out"
    )
