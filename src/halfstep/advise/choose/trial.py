"""The result of examining one recipe, and the settings that a config needs for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from halfstep.recipe import recipe as find_recipe

if TYPE_CHECKING:
    from halfstep.advise.choose.rehearse import Rehearsal
    from halfstep.advise.choose.single_calls import Damage
    from halfstep.advise.choose.sites import Site
    from halfstep.recipe import Recipe


@dataclass(slots=True)
class Trial:
    """The result of examining one recipe.

    Attributes:
        base: The requested name of the recipe.
        recipe: The recipe with the exceptions and the initial loss scale that were found.
        exceptions: The reason for each exception, by its pattern.
        rehearsal: The rehearsal of a whole step under `recipe`.
        damages: The damage of every site that the base recipe computes in a half format.
        rejected: Why the recipe is not safe with any exceptions; "" if it is safe.
        passes: The forward and backward passes that the trial took.
        headroom: Bits between the largest result of any site and the largest value of its format,
            over the recorded steps, without exceptions and sites that overflow; and the site's
            pattern.
        lines: The line of the model's code for each exception, as "file:line"; for a module with
            submodules, that of its first operator.
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
        """The damage of a step under the recipe, in units of the variance between batches."""
        return math.inf if self.rehearsal is None else self.rehearsal.damage

    @property
    def spec(self) -> dict[str, Any]:
        """The recipe as in a config: its base, and the settings that differ from the base."""
        base = find_recipe(self.base).settings()
        changed = {
            field: self._without_defaults(field, given)
            for field, given in self.recipe.settings().items()
            if given != base.get(field)
        }
        return {"base": self.base, **changed}

    def _without_defaults(self, field: str, given: Any) -> Any:
        """Return a field of the recipe without the settings that it has in any case."""
        if not isinstance(given, Mapping):
            return given

        def meaning(settings: Mapping[str, Any]) -> Any:
            return find_recipe({"base": self.base, field: settings}).settings()[field]

        return {
            key: value
            for key, value in given.items()
            if len(given) == 1
            or meaning({each: given[each] for each in given if each != key}) != given
        }

    def as_json(self) -> dict[str, Any]:
        """Return the trial as plain data."""
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
