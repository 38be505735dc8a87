"""What became of one recipe, and how a config writes that."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from halfstep.recipe import recipe as find_recipe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfstep.advise.choose.rehearse import Rehearsal
    from halfstep.advise.choose.sites import Site
    from halfstep.advise.choose.whatif import Damage
    from halfstep.recipe import Recipe


@dataclass(slots=True)
class Trial:
    """What became of one recipe.

    Attributes:
        base: The recipe as it was asked for.
        recipe: With the exceptions and the first loss scale that were found.
        exceptions: Patterns, each with its reason.
        rehearsal: A whole step under `recipe`.
        damages: Of every site that the base recipe computes in a half format.
        rejected: Why the recipe cannot be recommended, with any exceptions; "" where it can.
        passes: Forward and backward passes that the trial took.
        headroom: Bits between the largest result of any site and the largest value of its format,
            over the recorded steps, exceptions left out; and the site's pattern.
        lines: Where in the model's code each exception is, as "file:line"; of a module with others
            inside, its first operator.
    """

    base: str
    recipe: Recipe
    exceptions: dict[str, str] = field(default_factory=dict)
    rehearsal: Rehearsal | None = None
    damages: Mapping[Site, Damage] = field(default_factory=dict)
    rejected: str = ""
    passes: float = 0.0
    headroom: tuple[float, str] = (math.inf, "")
    lines: dict[str, str] = field(default_factory=dict)

    @property
    def damage(self) -> float:
        """What a step under the recipe costs, in units of the noise between batches."""
        return math.inf if self.rehearsal is None else self.rehearsal.damage

    @property
    def spec(self) -> dict[str, Any]:
        """The recipe as a config has it: what it is based on, and what differs from that."""
        base = find_recipe(self.base).settings()
        changed = {
            field: given
            for field, given in self.recipe.settings().items()
            if given != base.get(field)
        }
        return {"base": self.base, **changed}

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        found = self.rehearsal
        return {
            "recipe": self.base,
            "safe": not self.rejected,
            "rejected": self.rejected,
            "config": self.spec,
            "exceptions": {
                pattern: {"reason": reason, "line": self.lines.get(pattern, "")}
                for pattern, reason in self.exceptions.items()
            },
            "gradient_damage": None if found is None else found.gradient_damage,
            "damage": self.damage if math.isfinite(self.damage) else None,
            "headroom_bits": self.headroom[0],
            "headroom_at": self.headroom[1],
            "passes": round(self.passes, 2),
        }
