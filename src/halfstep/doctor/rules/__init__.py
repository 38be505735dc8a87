"""One file per cause. Each file has a `RULE`, and is found because it is in a package here."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from halfstep.doctor.verdict import Rule


@cache
def rules() -> tuple[Rule, ...]:
    """Return the rules, in the order of their rows in the catalogue.

    Raises:
        RuntimeError: If two have the same code.
    """
    found = [
        importlib.import_module(each.name).RULE
        for each in pkgutil.walk_packages(__path__, f"{__name__}.")
        if not each.ispkg
    ]
    codes = [each.code for each in found]
    if len(set(codes)) < len(codes):
        raise RuntimeError(f"two rules have the same code: {sorted(codes)}")
    return tuple(sorted(found, key=lambda each: (each.rows, each.code)))
