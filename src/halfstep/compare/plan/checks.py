"""The rows of a comparison that check it: does it call equals equal, and a bad recipe bad?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfstep.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfstep.compare.plan.grid import Check

OTHER_SEEDS = 1_000_000
"""What is added to the seeds of the first recipe's second row.

With the same seeds, its runs would be bitwise those of the first row on most devices, and would
show no noise at all.
"""
CONTROL: Mapping[str, Any] = {
    "name": "control",
    "base": "fp16",
    "loss_scale": {"dynamic": False, "init": 2.0**-18, "floor": 2.0**-18},
}
"""fp16 with small gradients, and what a missing loss scale does to them: most round to zero."""


def checks_of(recipes: Sequence[str], *, aa: bool, control: bool) -> dict[str, Check]:
    """Return the rows that check a comparison, by name.

    Args:
        recipes: The names of the recipes that are compared.
        aa: Whether the first recipe has a second row.
        control: Whether there is a row that loses accuracy by design.

    Raises:
        UserError: If a recipe already has one of these names.
    """
    checked: dict[str, Check] = {}
    if aa:
        checked[f"{recipes[0]}-again"] = "again"
    if control:
        checked[str(CONTROL["name"])] = "control"
    for name, flag in zip(checked, ("--aa", "--control") if aa else ("--control",), strict=False):
        if name in recipes:
            raise UserError(
                f"{flag} adds a row {name!r}, which is also a recipe in --recipes; give the recipe "
                "another name"
            )
    return checked
